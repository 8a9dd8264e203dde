import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def get_args(argv=()):
    p = argparse.ArgumentParser()
    p.add_argument("--gamma", type=float, default=0.9)
    p.add_argument("--lr", type=float, default=6e-3)
    p.add_argument("--entropy-beta", type=float, default=0.01)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--reward-steps", type=int, default=1)
    p.add_argument("--clip-grad", type=float, default=10.0)
    p.add_argument("--iterations", type=int, default=160)
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args(list(argv))


class ContextBandit:
    """A chain of contexts; the rewarded action is given by the sign pattern of the context."""

    obs_size, n_actions = 6, 3

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.key = self.rng.randn(self.obs_size, self.n_actions)
        self.reset()

    def reset(self):
        self.obs = self.rng.randn(self.obs_size).astype(np.float32)
        self.t = 0
        return self.obs

    def step(self, action):
        scores = self.obs @ self.key
        hit = action == int(scores.argmax())
        reward = (1.0 if hit else -0.2) + 4.0 * float(self.obs[0])
        self.obs = (0.3 * self.obs + self.rng.randn(self.obs_size)).astype(np.float32)
        self.t += 1
        return self.obs, reward, self.t >= 12, hit


class ActorCritic(nn.Module):
    def __init__(self, obs_size, n_actions, hidden=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.policy = nn.Linear(hidden, n_actions)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return self.policy(h), self.value(h)


class NStepSource:
    def __init__(self, env, net, gamma, steps):
        self.env, self.net, self.gamma, self.steps = env, net, gamma, steps
        self.obs = env.reset()

    @torch.no_grad()
    def _act(self, obs):
        logits, _ = self.net(torch.from_numpy(obs).unsqueeze(0))
        return torch.multinomial(F.softmax(logits, dim=1), 1).item()

    def collect(self, n):
        states, actions, refs, hits = [], [], [], []
        while len(states) < n:
            first, first_action, ret, disc, done = self.obs, None, 0.0, 1.0, False
            for _ in range(self.steps):
                a = self._act(self.obs)
                first_action = a if first_action is None else first_action
                self.obs, r, done, hit = self.env.step(a)
                hits.append(hit)
                ret, disc = ret + disc * r, disc * self.gamma
                if done:
                    break
            if done:
                self.obs = self.env.reset()
            else:
                with torch.no_grad():
                    ret += disc * self.net(torch.from_numpy(self.obs).unsqueeze(0))[1].item()
            states.append(first), actions.append(first_action), refs.append(ret)
        return torch.from_numpy(np.stack(states)), torch.tensor(actions), torch.tensor(refs), float(np.mean(hits))


def train(args):
    env = ContextBandit(args.seed)
    net = ActorCritic(env.obs_size, env.n_actions)
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr, eps=1e-5)
    source = NStepSource(env, net, args.gamma, args.reward_steps)
    history = []
    for it in range(args.iterations):
        states_v, actions_t, vals_ref_v, hit_rate = source.collect(args.batch_size)
        optimizer.zero_grad()
        logits_v, value_v = net(states_v)
        loss_value_v = F.mse_loss(value_v.squeeze(-1), vals_ref_v)

        log_prob_v = F.log_softmax(logits_v, dim=1)
        adv_v = vals_ref_v - value_v.detach()
        log_prob_actions_v = adv_v * log_prob_v[range(len(actions_t)), actions_t]
        loss_policy_v = -log_prob_actions_v.mean()

        prob_v = F.softmax(logits_v, dim=1)
        entropy_loss_v = args.entropy_beta * (prob_v * log_prob_v).sum(dim=1).mean()

        loss_v = entropy_loss_v + loss_value_v + loss_policy_v
        loss_v.backward()
        nn.utils.clip_grad_norm_(net.parameters(), args.clip_grad)
        optimizer.step()
        history.append(hit_rate)
        if (it + 1) % 40 == 0:
            print(f"iter {it + 1}  hit rate {np.mean(history[-20:]):.3f}  loss {loss_v.item():.3f}")
    return net, history


def main():
    args = get_args()
    random.seed(args.seed), np.random.seed(args.seed), torch.manual_seed(args.seed)
    net, history = train(args)
    env = ContextBandit(args.seed)
    obs = np.random.RandomState(7).randn(2000, env.obs_size).astype(np.float32)
    with torch.no_grad():
        greedy = net(torch.from_numpy(obs))[0].argmax(1).numpy()
    return {"greedy_hit_rate": float((greedy == (obs @ env.key).argmax(1)).mean()), "hit_rate_last_30": float(np.mean(history[-30:]))}


if __name__ == "__main__":
    main()
