"""Synchronous advantage actor critic on a batch of small environments."""
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F

GAMMA = 0.95
REWARD_STEPS = 3


@dataclass
class Params:
    learning_rate: float = 3e-3
    entropy_beta: float = 0.01
    batch_size: int = 48
    num_envs: int = 8
    clip_grad: float = 0.5
    frames: int = 220
    seed: int = 4


class KeyDoor:
    """A cue tells which of three buttons opens the door; doors differ in worth."""

    worth = (0.3, 2.0, 9.0)

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.cue, self.door, self.left = self.rng.integers(3), self.rng.integers(3), 3
        return self._obs()

    def _obs(self):
        obs = np.zeros(7, dtype=np.float32)
        obs[self.cue], obs[3 + self.door], obs[6] = 1.0, 1.0, self.left / 3
        return obs

    def step(self, action):
        self.left -= 1
        self.right = action == self.cue
        reward = self.worth[self.door] if self.right else 0.0
        done = self.left == 0
        self.cue = self.rng.integers(3)
        return (self.reset() if done else self._obs()), reward, done


class AtariA2C(nn.Module):
    def __init__(self, inputs, actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU())
        self.policy = nn.Linear(32, actions)
        self.value = nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return self.policy(h), self.value(h)


class ExperienceSource:
    def __init__(self, envs, agent):
        self.envs, self.agent = envs, agent
        self.obs = np.stack([env.reset() for env in envs])
        self.hits, self.count = 0, 0

    def steps(self):
        """Yields (state, action, discounted reward, last state or None)."""
        window = [[] for _ in self.envs]
        while True:
            actions = self.agent(self.obs)
            new = []
            for i, env in enumerate(self.envs):
                obs, reward, done = env.step(actions[i])
                self.hits += env.right
                self.count += 1
                window[i].append((self.obs[i], actions[i], reward))
                if done or len(window[i]) == REWARD_STEPS:
                    total = 0.0
                    for _, _, r in reversed(window[i]):
                        total = r + GAMMA * total
                    yield window[i][0][0], window[i][0][1], total, None if done else obs
                    window[i] = []
                new.append(obs)
            self.obs = np.stack(new)


def unpack_batch(batch, net):
    states, actions, rewards, not_done_idx, last_states = [], [], [], [], []
    for idx, (state, action, reward, last) in enumerate(batch):
        states.append(state)
        actions.append(int(action))
        rewards.append(reward)
        if last is not None:
            not_done_idx.append(idx)
            last_states.append(last)
    rewards_np = np.array(rewards, dtype=np.float32)
    if not_done_idx:
        with torch.no_grad():
            last_vals = net(torch.as_tensor(np.stack(last_states)))[1].numpy()[:, 0]
        rewards_np[not_done_idx] += GAMMA ** REWARD_STEPS * last_vals
    return torch.as_tensor(np.stack(states)), torch.as_tensor(actions), torch.as_tensor(rewards_np)


def main():
    params = Params()
    torch.manual_seed(params.seed)
    rng = np.random.default_rng(params.seed)
    net = AtariA2C(7, 3)
    optimizer = optim.Adam(net.parameters(), lr=params.learning_rate, eps=1e-3)

    def agent(obs):
        with torch.no_grad():
            return torch.distributions.Categorical(logits=net(torch.as_tensor(obs))[0]).sample().numpy()

    source = ExperienceSource([KeyDoor(rng) for _ in range(params.num_envs)], agent)
    batch, frame = [], 0
    for exp in source.steps():
        batch.append(exp)
        if len(batch) < params.batch_size:
            continue
        states_v, actions_t, vals_ref_v = unpack_batch(batch, net)
        batch.clear()
        frame += 1

        optimizer.zero_grad()
        logits_v, value_v = net(states_v)
        loss_value_v = F.mse_loss(value_v.squeeze(-1), vals_ref_v)

        log_prob_v = F.log_softmax(logits_v, dim=1)
        adv_v = vals_ref_v - value_v.squeeze(-1).detach()
        log_prob_actions_v = adv_v * log_prob_v[range(len(actions_t)), actions_t]
        loss_policy_v = -log_prob_actions_v.mean()
        entropy_loss_v = params.entropy_beta * (log_prob_v.exp() * log_prob_v).sum(dim=1).mean()

        loss_v = loss_policy_v + entropy_loss_v + loss_value_v
        loss_v.backward()
        nn.utils.clip_grad_norm_(net.parameters(), params.clip_grad)
        optimizer.step()
        if frame % 55 == 0:
            hits, source.hits, source.count = source.hits / source.count, 0, 0
            print(f"update {frame} loss {loss_v.item():.4f} right {hits:.3f}")
        if frame == params.frames:
            break
    return {"right_buttons": float(hits), "advantages": adv_v.numel()}


if __name__ == "__main__":
    main()
