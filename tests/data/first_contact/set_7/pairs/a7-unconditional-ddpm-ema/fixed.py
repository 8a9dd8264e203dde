import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SinusoidalEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(-math.log(1000.0) * torch.arange(half) / half)
        args = t.float()[:, None] * freqs[None]
        return torch.cat([args.sin(), args.cos()], dim=-1)


class Denoiser(nn.Module):
    def __init__(self, dim=2, hidden=64, t_dim=16):
        super().__init__()
        self.time = nn.Sequential(SinusoidalEmbedding(t_dim), nn.Linear(t_dim, hidden))
        self.inp = nn.Linear(dim, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, x, t):
        h = F.silu(self.inp(x) + self.time(t))
        h = h + F.silu(self.mid(h))
        return self.out(h)


class EMAModel:
    def __init__(self, parameters, decay=0.9999):
        self.shadow_params = [p.clone().detach() for p in parameters]
        self.collected_params = None
        self.decay = decay
        self.optimization_step = 0

    @torch.no_grad()
    def step(self, parameters):
        self.optimization_step += 1
        value = (1 + self.optimization_step) / (10 + self.optimization_step)
        one_minus_decay = 1 - min(self.decay, value)
        for s_param, param in zip(self.shadow_params, parameters):
            s_param.sub_(one_minus_decay * (s_param - param))

    def store(self, parameters):
        self.collected_params = [p.detach().clone() for p in parameters]

    def copy_to(self, parameters):
        for s_param, param in zip(self.shadow_params, parameters):
            param.data.copy_(s_param)

    def restore(self, parameters):
        for c_param, param in zip(self.collected_params, parameters):
            param.data.copy_(c_param)
        self.collected_params = None


class NoiseScheduler:
    def __init__(self, num_train_timesteps=50):
        self.num_train_timesteps = num_train_timesteps
        self.betas = torch.linspace(1e-3, 0.15, num_train_timesteps)
        self.alphas_cumprod = torch.cumprod(1 - self.betas, 0)

    def add_noise(self, x0, noise, t):
        a = self.alphas_cumprod[t][:, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * noise

    @torch.no_grad()
    def sample(self, model, n):
        x = torch.randn(n, 2)
        for i in reversed(range(self.num_train_timesteps)):
            t = torch.full((n,), i)
            beta, abar = self.betas[i], self.alphas_cumprod[i]
            x = (x - beta / (1 - abar).sqrt() * model(x, t)) / (1 - beta).sqrt()
            if i > 0:
                x = x + beta.sqrt() * torch.randn_like(x)
        return x


def two_moons(n):
    theta = torch.rand(n) * math.pi
    side = torch.randint(0, 2, (n,)).float()
    x = torch.cos(theta) * (1 - 2 * side) + side - 0.5
    y = torch.sin(theta) * (1 - 2 * side) + 0.5 * side - 0.25
    return torch.stack([x, y], -1) + 0.05 * torch.randn(n, 2)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--ema_decay", type=float, default=0.995)
    parser.add_argument("--validate_every", type=int, default=100)
    return parser.parse_args([])


def main():
    args = parse_args()
    torch.manual_seed(0)
    model = Denoiser()
    scheduler = NoiseScheduler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    ema = EMAModel(model.parameters(), decay=args.ema_decay)
    val = two_moons(512)
    val_t = torch.randint(0, scheduler.num_train_timesteps, (512,))
    val_noise = torch.randn_like(val)
    for step in range(1, args.steps + 1):
        clean = two_moons(args.batch_size)
        noise = torch.randn_like(clean)
        t = torch.randint(0, scheduler.num_train_timesteps, (clean.shape[0],))
        loss = F.mse_loss(model(scheduler.add_noise(clean, noise, t), t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.step(model.parameters())
        if step % args.validate_every == 0:
            ema.store(model.parameters())
            ema.copy_to(model.parameters())
            with torch.no_grad():
                pred = model(scheduler.add_noise(val, val_noise, val_t), val_t)
                val_loss = F.mse_loss(pred, val_noise).item()
                spread = scheduler.sample(model, 128).std().item()
            ema.restore(model.parameters())
            print(f"step {step} loss {loss.item():.4f} ema val {val_loss:.4f} sample std {spread:.3f}")


if __name__ == "__main__":
    main()
