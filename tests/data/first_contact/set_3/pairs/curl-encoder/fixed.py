"""Contrastive representation for a pixel agent: critic update, then the contrastive update."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    channels: int = 3
    size: int = 12
    feature_dim: int = 16
    action_dim: int = 2
    critic_lr: float = 1e-3
    encoder_lr: float = 1e-3
    encoder_tau: float = 0.05
    critic_tau: float = 0.01
    batch_size: int = 32
    num_updates: int = 80
    cpc_update_freq: int = 1
    log_interval: int = 20
    seed: int = 5


class PixelEncoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(args.channels, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        side = ((args.size - 2) - 3) // 2 + 1 - 2
        self.fc = nn.Linear(8 * side * side, args.feature_dim)
        self.ln = nn.LayerNorm(args.feature_dim)

    def forward(self, obs, detach=False):
        h = self.convs(obs).flatten(1)
        if detach:
            h = h.detach()
        return torch.tanh(self.ln(self.fc(h)))


class Critic(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.encoder = PixelEncoder(args)
        self.q = nn.Sequential(nn.Linear(args.feature_dim + args.action_dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, action):
        return self.q(torch.cat([self.encoder(obs), action], dim=-1))


class CURL(nn.Module):
    def __init__(self, z_dim, critic, critic_target):
        super().__init__()
        self.encoder = critic.encoder
        self.encoder_target = critic_target.encoder
        self.W = nn.Parameter(torch.rand(z_dim, z_dim))

    def encode(self, x, ema=False):
        if ema:
            with torch.no_grad():
                return self.encoder_target(x)
        return self.encoder(x)

    def compute_logits(self, z_a, z_pos):
        logits = z_a @ (self.W @ z_pos.T)
        return logits - logits.max(dim=1, keepdim=True).values


def random_crop(imgs, out):
    shift = torch.randint(0, imgs.shape[-1] - out + 1, (2,))
    return imgs[..., shift[0] : shift[0] + out, shift[1] : shift[1] + out]


class CurlAgent:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args = args
        self.critic = Critic(args)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.curl = CURL(args.feature_dim, self.critic, self.critic_target)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=args.critic_lr)
        self.encoder_optimizer = torch.optim.Adam(self.critic.encoder.parameters(), lr=args.encoder_lr)
        self.cpc_optimizer = torch.optim.Adam([self.curl.W], lr=args.encoder_lr)
        self.losses = {"critic": [], "cpc": []}

    def update_critic(self, obs, action, reward, next_obs):
        with torch.no_grad():
            target = reward + 0.9 * self.critic_target(next_obs, action)
        loss = F.mse_loss(self.critic(obs, action), target)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        self.losses["critic"].append(loss.item())

    def update_cpc(self, obs_anchor, obs_pos):
        z_a = self.curl.encode(obs_anchor)
        z_pos = self.curl.encode(obs_pos, ema=True)
        logits = self.curl.compute_logits(z_a, z_pos)
        loss = F.cross_entropy(logits, torch.arange(logits.shape[0]))
        self.encoder_optimizer.zero_grad()
        self.cpc_optimizer.zero_grad()
        loss.backward()
        self.encoder_optimizer.step()
        self.cpc_optimizer.step()
        self.losses["cpc"].append(loss.item())

    @torch.no_grad()
    def soft_update(self):
        pairs = [(self.critic.q, self.critic_target.q, self.args.critic_tau)]
        pairs.append((self.critic.encoder, self.critic_target.encoder, self.args.encoder_tau))
        for net, target, tau in pairs:
            for p, tp in zip(net.parameters(), target.parameters()):
                tp.copy_(tau * p + (1 - tau) * tp)

    def update(self, replay, step):
        obs, action, reward, next_obs = replay.sample(self.args.batch_size)
        crop = self.args.size - 2
        self.update_critic(random_crop(obs, crop), action, reward, random_crop(next_obs, crop))
        self.soft_update()
        if step % self.args.cpc_update_freq == 0:
            self.update_cpc(random_crop(obs, crop), random_crop(obs, crop))
        if step % self.args.log_interval == 0:
            print(f"step {step} critic {self.losses['critic'][-1]:.4f} cpc {self.losses['cpc'][-1]:.4f}")


class Replay:
    def __init__(self, args, size=256):
        self.obs = torch.rand(size, args.channels, args.size, args.size)
        self.next_obs = torch.rand(size, args.channels, args.size, args.size)
        self.action = torch.rand(size, args.action_dim) * 2 - 1
        self.reward = self.obs.mean(dim=(1, 2, 3))[:, None] + 0.1 * self.action[:, :1]

    def sample(self, n):
        idx = torch.randint(0, self.obs.shape[0], (n,))
        return self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx]


def main():
    args = Args()
    agent = CurlAgent(args)
    replay = Replay(args)
    for step in range(args.num_updates):
        agent.update(replay, step)
    return agent


if __name__ == "__main__":
    main()
