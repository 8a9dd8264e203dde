import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class Config:
    obs: int = 4
    act: int = 2
    hidden: int = 48
    timesteps: int = 10
    dropout: float = 0.1
    lr: float = 2e-3
    batch: int = 64
    offline_steps: int = 180
    eval_freq: int = 60
    seed: int = 12


class NoiseScheduler:
    def __init__(self, steps):
        self.steps = steps
        betas = torch.linspace(1e-3, 0.3, steps)
        self.alphas = 1 - betas
        self.bar = torch.cumprod(self.alphas, 0)

    def add_noise(self, x, noise, t):
        bar = self.bar[t].unsqueeze(1)
        return bar.sqrt() * x + (1 - bar).sqrt() * noise

    def step(self, eps, t, x):
        mean = (x - (1 - self.alphas[t]) / (1 - self.bar[t]).sqrt() * eps) / self.alphas[t].sqrt()
        return mean if t == 0 else mean + (1 - self.alphas[t]).sqrt() * 0.5 * torch.randn_like(x)


class DiffusionPolicy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.scheduler = cfg, NoiseScheduler(cfg.timesteps)
        self.time = nn.Embedding(cfg.timesteps, cfg.hidden)
        self.obs_encoder = nn.Sequential(nn.Linear(cfg.obs, cfg.hidden), nn.BatchNorm1d(cfg.hidden), nn.ReLU())
        self.noise_net = nn.Sequential(
            nn.Linear(cfg.act + 2 * cfg.hidden, cfg.hidden), nn.Mish(), nn.Dropout(cfg.dropout), nn.Linear(cfg.hidden, cfg.act)
        )

    def predict(self, noisy, obs_features, t):
        return self.noise_net(torch.cat([noisy, obs_features, self.time(t)], 1))

    def compute_loss(self, batch):
        noise = torch.randn_like(batch["action"])
        t = torch.randint(self.cfg.timesteps, (len(noise),))
        noisy = self.scheduler.add_noise(batch["action"], noise, t)
        return F.mse_loss(self.predict(noisy, self.obs_encoder(batch["observation"]), t), noise)

    def select_action(self, obs):
        features = self.obs_encoder(obs)
        x = torch.randn(len(obs), self.cfg.act)
        for t in reversed(range(self.cfg.timesteps)):
            x = self.scheduler.step(self.predict(x, features, torch.full((len(obs),), t)), t, x)
        return x


class DemoBuffer:
    def __init__(self, cfg, shift=0.0):
        self.cfg, self.shift = cfg, shift

    def sample(self, n):
        obs = torch.randn(n, self.cfg.obs) + self.shift
        return {"observation": obs, "action": torch.tanh(obs[:, : self.cfg.act])}


def eval_policy(cfg, policy, envs, num_episodes=3, horizon=4):
    returns = []
    with torch.no_grad():
        for _ in range(num_episodes):
            total = 0.0
            for _ in range(horizon):
                batch = envs.sample(16)
                action = policy.select_action(batch["observation"])
                total -= (action - batch["action"]).pow(2).mean().item()
            returns.append(total)
    return sum(returns) / len(returns)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    policy = DiffusionPolicy(cfg)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=cfg.lr)
    demos, envs = DemoBuffer(cfg), DemoBuffer(cfg, shift=1.5)
    policy.train()
    evals = []
    for step in range(1, cfg.offline_steps + 1):
        loss = policy.compute_loss(demos.sample(cfg.batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % cfg.eval_freq == 0:
            evals.append(eval_policy(cfg, policy, envs))
            print(f"step {step}: loss {loss.item():.4f}, return {evals[-1]:.3f}")
    return {"policy": policy, "evals": evals, "envs": envs, "cfg": cfg}

if __name__ == "__main__":
    main()
