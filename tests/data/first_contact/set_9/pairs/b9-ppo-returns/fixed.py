from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Normal


@dataclass
class PPOConfig:
    num_envs: int = 8
    rollout_steps: int = 16
    updates: int = 12
    update_epochs: int = 4
    minibatch_size: int = 32
    gamma: float = 0.95
    gae_lambda: float = 0.9
    clip_ratio: float = 0.2
    value_clip: float = 0.5
    entropy_coef: float = 1e-3
    value_coef: float = 1.0
    lr: float = 3e-3


class ReachEnv:
    def __init__(self, num_envs, max_steps=16):
        self.num_envs = num_envs
        self.max_steps = max_steps
        self.generator = torch.Generator().manual_seed(9)
        self.reset()

    def _spawn(self, n):
        return 4 * torch.rand(n, 2, generator=self.generator) - 2

    def reset(self):
        self.pos, self.goal = self._spawn(self.num_envs), self._spawn(self.num_envs)
        self.t = torch.zeros(self.num_envs)
        return self.observe()

    def observe(self):
        left = (self.max_steps - self.t)[:, None] / self.max_steps
        return torch.cat([self.pos, self.goal, left], dim=-1)

    def step(self, action):
        self.pos = self.pos + 0.4 * action.clamp(-1, 1)
        self.t = self.t + 1
        reward = -(self.pos - self.goal).norm(dim=-1, keepdim=True)
        done = (self.t >= self.max_steps)[:, None].float()
        index = done.squeeze(-1).bool()
        if index.any():
            n = int(index.sum())
            self.pos[index], self.goal[index] = self._spawn(n), self._spawn(n)
            self.t[index] = 0
        return self.observe(), reward, done


class ActionExpert(nn.Module):
    def __init__(self, obs_dim=5, act_dim=2, hidden=48):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.action_head = nn.Linear(hidden, act_dim)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))
        self.value_head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def get_value(self, features):
        return self.value_head(features.detach())

    @torch.no_grad()
    def predict_action_batch(self, obs):
        features = self.backbone(obs)
        dist = Normal(self.action_head(features), self.log_std.exp())
        action = dist.sample()
        return {
            "action": action,
            "prev_logprobs": dist.log_prob(action).sum(-1, keepdim=True),
            "prev_values": self.get_value(features),
        }

    def default_forward(self, obs, action):
        features = self.backbone(obs)
        dist = Normal(self.action_head(features), self.log_std.exp())
        return {
            "logprobs": dist.log_prob(action).sum(-1, keepdim=True),
            "entropy": dist.entropy().sum(-1, keepdim=True),
            "values": self.get_value(features),
        }


def compute_gae(rewards, dones, values, last_value, cfg):
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(last_value)
    for t in reversed(range(rewards.shape[0])):
        next_value = last_value if t == rewards.shape[0] - 1 else values[t + 1]
        delta = rewards[t] + cfg.gamma * (1 - dones[t]) * next_value - values[t]
        running = delta + cfg.gamma * cfg.gae_lambda * (1 - dones[t]) * running
        advantages[t] = running
    return advantages, advantages + values


def actor_loss_fn(out, batch, cfg):
    ratio = (out["logprobs"] - batch["prev_logprobs"]).exp()
    advantages = batch["advantages"]
    clipped = ratio.clamp(1 - cfg.clip_ratio, 1 + cfg.clip_ratio)
    return -torch.min(ratio * advantages, clipped * advantages).mean()


def critic_loss_fn(values, returns, prev_values, cfg):
    clipped = prev_values + (values - prev_values).clamp(-cfg.value_clip, cfg.value_clip)
    original_loss = (returns - values).pow(2)
    clipped_loss = (returns - clipped).pow(2)
    return 0.5 * torch.max(original_loss, clipped_loss).mean()


def collect(env, model, obs, cfg):
    storage = {k: [] for k in ("obs", "action", "prev_logprobs", "prev_values", "reward", "done")}
    for _ in range(cfg.rollout_steps):
        result = model.predict_action_batch(obs)
        next_obs, reward, done = env.step(result["action"])
        for key, value in {"obs": obs, "reward": reward, "done": done, **result}.items():
            storage[key].append(value)
        obs = next_obs
    data = {k: torch.stack(v) for k, v in storage.items()}
    last_value = model.predict_action_batch(obs)["prev_values"]
    advantages, returns = compute_gae(
        data["reward"], data["done"], data["prev_values"], last_value, cfg
    )
    data["advantages"] = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
    data["returns"] = returns
    return obs, {k: v.flatten(0, 1) for k, v in data.items()}


def update(model, optimizer, data, cfg):
    size = data["obs"].shape[0]
    logs = []
    for _ in range(cfg.update_epochs):
        for index in torch.randperm(size).split(cfg.minibatch_size):
            batch = {k: v[index] for k, v in data.items()}
            out = model.default_forward(batch["obs"], batch["action"])
            actor_loss = actor_loss_fn(out, batch, cfg)
            critic_loss = critic_loss_fn(out["values"], batch["returns"], batch["prev_values"], cfg)
            loss = actor_loss + cfg.value_coef * critic_loss - cfg.entropy_coef * out["entropy"].mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            logs.append(critic_loss.item())
    return sum(logs) / len(logs)


def main():
    torch.manual_seed(13)
    cfg = PPOConfig()
    env = ReachEnv(cfg.num_envs)
    model = ActionExpert()
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    obs = env.reset()
    for i in range(cfg.updates):
        obs, data = collect(env, model, obs, cfg)
        critic_loss = update(model, optimizer, data, cfg)
        reward = data["reward"].mean().item()
        print(f"update {i:2d} reward {reward:.3f} critic_loss {critic_loss:.4f}")


if __name__ == "__main__":
    main()
