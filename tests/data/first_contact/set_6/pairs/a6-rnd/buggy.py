"""Exploration by random network distillation on a chain of states."""
import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical
from torch.nn import functional as F

OPTIONS = {
    "num_worker": 8, "num_step": 16, "epoch": 2, "mini_batch": 4, "ppo_eps": 0.1, "learning_rate": 5e-3,
    "gamma": 0.95, "ent_coef": 0.01, "clip_grad_norm": 0.5, "updates": 12, "states": 12,
}


def global_grad_norm_(parameters, norm_type=2):
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    parameters = list(filter(lambda p: p.grad is not None, parameters))
    norm_type = float(norm_type)
    total_norm = 0.0
    for p in parameters:
        param_norm = p.grad.data.norm(norm_type)
        total_norm += param_norm.item() ** norm_type
    total_norm = total_norm ** (1.0 / norm_type)
    return total_norm


class ChainEnv:
    def __init__(self, workers, states, rng):
        self.workers, self.states, self.rng = workers, states, rng
        self.pos = np.zeros(workers, dtype=np.int64)

    def observe(self):
        return torch.eye(self.states)[torch.as_tensor(self.pos)]

    def step(self, actions):
        self.pos = np.clip(self.pos + np.where(actions == 1, 1, -1), 0, self.states - 1)
        reward = 10.0 * (self.pos == self.states - 1) - 0.1
        self.pos[self.pos == self.states - 1] = 0
        return self.observe(), reward.astype(np.float32)


class CnnActorCritic(nn.Module):
    def __init__(self, states):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(states, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.actor = nn.Linear(64, 2)
        self.critic = nn.Linear(64, 1)

    def forward(self, state):
        x = self.feature(state)
        return self.actor(x), self.critic(x).squeeze(1)


class RNDModel(nn.Module):
    def __init__(self, states):
        super().__init__()
        self.predictor = nn.Sequential(nn.Linear(states, 64), nn.ReLU(), nn.Linear(64, 32))
        self.target = nn.Sequential(nn.Linear(states, 64), nn.ReLU(), nn.Linear(64, 32))
        for param in self.target.parameters():
            param.requires_grad = False

    def forward(self, obs):
        return self.predictor(obs), self.target(obs)


class RNDAgent:
    def __init__(self, opt):
        self.opt = opt
        self.model = CnnActorCritic(opt["states"])
        self.rnd = RNDModel(opt["states"])
        self.params = list(self.model.parameters()) + list(self.rnd.predictor.parameters())
        self.optimizer = torch.optim.Adam(self.params, lr=opt["learning_rate"])
        self.norms = []

    def get_action(self, state):
        with torch.no_grad():
            logits, value = self.model(state)
        dist = Categorical(logits=logits)
        action = dist.sample()
        return action, value, dist.log_prob(action)

    def intrinsic(self, obs):
        with torch.no_grad():
            predict, target = self.rnd(obs)
        return (predict - target).pow(2).sum(1)

    def train_model(self, s, action, target, adv, old_log_prob, next_s):
        n = len(s)
        for _ in range(self.opt["epoch"]):
            for idx in torch.randperm(n).chunk(self.opt["mini_batch"]):
                predict, fixed = self.rnd(next_s[idx])
                forward_loss = F.mse_loss(predict, fixed.detach())
                logits, value = self.model(s[idx])
                dist = Categorical(logits=logits)
                ratio = (dist.log_prob(action[idx]) - old_log_prob[idx]).exp()
                surr = torch.min(ratio * adv[idx], ratio.clamp(1 - self.opt["ppo_eps"], 1 + self.opt["ppo_eps"]) * adv[idx])
                critic_loss = F.mse_loss(value, target[idx])
                loss = -surr.mean() + 0.5 * critic_loss - self.opt["ent_coef"] * dist.entropy().mean() + forward_loss
                self.optimizer.zero_grad()
                loss.backward()
                self.norms.append(global_grad_norm_(self.params))
                self.optimizer.step()


def main():
    torch.manual_seed(0)
    opt = OPTIONS
    env = ChainEnv(opt["num_worker"], opt["states"], np.random.default_rng(0))
    agent = RNDAgent(opt)
    obs = env.observe()
    for update in range(opt["updates"]):
        roll = []
        for _ in range(opt["num_step"]):
            action, value, log_prob = agent.get_action(obs)
            next_obs, reward = env.step(action.numpy())
            roll.append((obs, action, torch.as_tensor(reward) + agent.intrinsic(next_obs), value, log_prob, next_obs))
            obs = next_obs
        s, a, r, v, lp, ns = (torch.stack(x) for x in zip(*roll))
        running = agent.get_action(obs)[1]
        returns = torch.zeros_like(r)
        for t in reversed(range(opt["num_step"])):
            running = r[t] + opt["gamma"] * running
            returns[t] = running
        flat = [x.reshape(-1, *x.shape[2:]) for x in (s, a, returns, returns - v, lp, ns)]
        agent.train_model(*flat)
        if update % 4 == 3:
            print(f"update {update + 1} return {returns.mean().item():.3f} gradient norm {np.mean(agent.norms[-8:]):.3f}")
    return agent


if __name__ == "__main__":
    main()
