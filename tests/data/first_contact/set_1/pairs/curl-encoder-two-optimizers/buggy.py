import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    seed: int = 0
    image_size: int = 12
    crop: int = 10
    z_dim: int = 16
    encoder_lr: float = 1e-3
    critic_lr: float = 1e-3
    encoder_tau: float = 0.05
    critic_tau: float = 0.05
    discount: float = 0.9
    batch_size: int = 32
    steps: int = 120
    cpc_update_freq: int = 1


def random_crop(imgs, out):
    n, _, h, _ = imgs.shape
    i, j = torch.randint(0, h - out + 1, (2,)).tolist()
    return imgs[:, :, i:i + out, j:j + out]


class PixelEncoder(nn.Module):
    def __init__(self, z_dim, crop):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        with torch.no_grad():
            flat = self.convs(torch.zeros(1, 1, crop, crop)).numel()
        self.fc, self.ln = nn.Linear(flat, z_dim), nn.LayerNorm(z_dim)

    def forward(self, obs):
        return torch.tanh(self.ln(self.fc(self.convs(obs).flatten(1))))


class Critic(nn.Module):
    def __init__(self, encoder, n_actions):
        super().__init__()
        self.encoder = encoder
        self.Q = nn.Sequential(nn.Linear(encoder.fc.out_features, 32), nn.ReLU(), nn.Linear(32, n_actions))

    def forward(self, obs):
        return self.Q(self.encoder(obs))


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
        return logits - logits.max(dim=1, keepdim=True).values.detach()


class CurlDQNAgent:
    def __init__(self, args, n_actions=3):
        self.args = args
        self.critic = Critic(PixelEncoder(args.z_dim, args.crop), n_actions)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.CURL = CURL(args.z_dim, self.critic, self.critic_target)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=args.critic_lr)
        self.encoder_optimizer = torch.optim.Adam(self.critic.encoder.parameters(), lr=args.encoder_lr)
        self.cpc_optimizer = torch.optim.Adam(self.CURL.parameters(), lr=args.encoder_lr)
        self.encoder_moves = []

    def update_critic(self, obs, action, reward, next_obs):
        with torch.no_grad():
            target = reward + self.args.discount * self.critic_target(next_obs).max(1).values
        q = self.critic(obs).gather(1, action[:, None]).squeeze(1)
        loss = F.mse_loss(q, target)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        return loss.item()

    def update_cpc(self, obs_anchor, obs_pos):
        z_a = self.CURL.encode(obs_anchor)
        z_pos = self.CURL.encode(obs_pos, ema=True)
        logits = self.CURL.compute_logits(z_a, z_pos)
        loss = F.cross_entropy(logits, torch.arange(logits.shape[0]))
        before = self.critic.encoder.fc.weight.detach().clone()
        self.encoder_optimizer.zero_grad()
        self.cpc_optimizer.zero_grad()
        loss.backward()
        self.encoder_optimizer.step()
        self.cpc_optimizer.step()
        self.encoder_moves.append((self.critic.encoder.fc.weight - before).norm().item())
        return loss.item()

    @torch.no_grad()
    def soft_update(self):
        for module, target, tau in ((self.critic.encoder, self.critic_target.encoder, self.args.encoder_tau),
                                    (self.critic.Q, self.critic_target.Q, self.args.critic_tau)):
            for p, tp in zip(module.parameters(), target.parameters()):
                tp.mul_(1 - tau).add_(p, alpha=tau)


def make_batch(args):
    obs = torch.zeros(args.batch_size, 1, args.image_size, args.image_size)
    col = torch.randint(2, args.image_size - 2, (args.batch_size,))
    obs[torch.arange(args.batch_size), 0, args.image_size // 2, col] = 3.0
    obs = obs + 0.1 * torch.randn_like(obs)
    action = torch.randint(0, 3, (args.batch_size,))
    reward = (action == (col * 3 // args.image_size)).float()
    next_obs = torch.roll(obs, shifts=1, dims=3)
    return obs, action, reward, next_obs


def main():
    args = Args()
    torch.manual_seed(args.seed)
    agent = CurlDQNAgent(args)
    for step in range(args.steps):
        obs, action, reward, next_obs = make_batch(args)
        critic_loss = agent.update_critic(random_crop(obs, args.crop), action, reward, random_crop(next_obs, args.crop))
        if step % args.cpc_update_freq == 0:
            cpc_loss = agent.update_cpc(random_crop(obs, args.crop), random_crop(obs, args.crop))
        agent.soft_update()
        if (step + 1) % 40 == 0:
            print(f"step {step + 1}  critic {critic_loss:.4f}  cpc {cpc_loss:.4f}")
    return {"encoder_move_per_cpc_step": sum(agent.encoder_moves) / len(agent.encoder_moves), "cpc_loss": cpc_loss}


if __name__ == "__main__":
    main()
