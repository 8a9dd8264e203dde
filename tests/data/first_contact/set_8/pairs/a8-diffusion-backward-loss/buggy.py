import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    timesteps: int = 50
    hidden: int = 64
    layers: int = 3
    batch_size: int = 128
    steps: int = 500
    lr: float = 0.005
    seed: int = 0


class SinusoidalEmbedding(nn.Module):
    def __init__(self, size, scale=1.0):
        super().__init__()
        self.size, self.scale = size, scale

    def forward(self, x):
        half = self.size // 2
        freq = torch.exp(-math.log(10000.0) * torch.arange(half) / (half - 1))
        angle = (x.float() * self.scale).unsqueeze(-1) * freq
        return torch.cat([angle.sin(), angle.cos()], dim=-1)


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.ff = nn.Linear(size, size)

    def forward(self, x):
        return x + F.gelu(self.ff(x))


class NoiseMLP(nn.Module):
    def __init__(self, cfg, emb=32):
        super().__init__()
        self.time_emb = SinusoidalEmbedding(emb)
        self.x_emb = SinusoidalEmbedding(emb, scale=25.0)
        self.y_emb = SinusoidalEmbedding(emb, scale=25.0)
        blocks = [nn.Linear(3 * emb, cfg.hidden), nn.GELU()]
        blocks += [Block(cfg.hidden) for _ in range(cfg.layers)]
        self.joint = nn.Sequential(*blocks, nn.Linear(cfg.hidden, 2))

    def forward(self, x, t):
        parts = [self.x_emb(x[:, 0]), self.y_emb(x[:, 1]), self.time_emb(t)]
        return self.joint(torch.cat(parts, dim=-1))


class NoiseScheduler:
    def __init__(self, timesteps, start=1e-3, end=0.05):
        self.betas = torch.linspace(start, end, timesteps)
        self.alphas_cumprod = torch.cumprod(1.0 - self.betas, dim=0)
        self.timesteps = timesteps

    def add_noise(self, x, noise, t):
        keep = self.alphas_cumprod[t].unsqueeze(1)
        return keep.sqrt() * x + (1.0 - keep).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, n):
        x = torch.randn(n, 2)
        for t in reversed(range(self.timesteps)):
            steps = torch.full((n,), t, dtype=torch.long)
            beta, keep = self.betas[t], self.alphas_cumprod[t]
            mean = (x - beta / (1 - keep).sqrt() * model(x, steps)) / (1 - beta).sqrt()
            x = mean + (beta.sqrt() * torch.randn_like(x) if t > 0 else 0.0)
        return x


def make_moons(n):
    angle = math.pi * torch.rand(n)
    upper = torch.rand(n) < 0.5
    x = torch.where(upper, angle.cos(), 1.0 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    points = torch.stack([x - 0.5, y - 0.25], dim=1)
    return points + 0.05 * torch.randn(n, 2)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    data = make_moons(2000)
    model = NoiseMLP(cfg)
    scheduler = NoiseScheduler(cfg.timesteps)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    losses = []
    model.train()
    for step in range(cfg.steps):
        batch = data[torch.randint(0, len(data), (cfg.batch_size,))]
        noise = torch.randn_like(batch)
        timesteps = torch.randint(0, cfg.timesteps, (len(batch),))
        noisy = scheduler.add_noise(batch, noise, timesteps)
        noise_pred = model(noisy, timesteps)
        loss = F.mse_loss(noise_pred, noise)
        loss.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().item())
        if step % 100 == 0:
            print(f"step {step:4d} loss {losses[-1]:.4f}")
    model.eval()
    samples = scheduler.sample(model, 500)
    nearest = torch.cdist(samples, data).min(dim=1).values
    print(f"mean loss of the last 100 steps {sum(losses[-100:]) / 100:.4f}")
    print(f"distance of samples to the data {nearest.mean().item():.4f}")


if __name__ == "__main__":
    main()
