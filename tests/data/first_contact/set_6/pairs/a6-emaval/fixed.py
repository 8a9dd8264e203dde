"""Unconditional denoising diffusion on a two-dimensional point set."""
import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class TrainingConfig:
    train_batch_size: int = 128
    num_epochs: int = 6
    steps_per_epoch: int = 50
    learning_rate: float = 2e-3
    num_train_timesteps: int = 40
    ema_decay: float = 0.98
    save_images_epochs: int = 1
    seed: int = 0


class EMAModel:
    def __init__(self, parameters, decay):
        self.shadow_params = [p.clone().detach() for p in parameters]
        self.decay = decay
        self.collected_params = None

    @torch.no_grad()
    def step(self, parameters):
        for s, p in zip(self.shadow_params, parameters):
            s.sub_((1.0 - self.decay) * (s - p))

    def copy_to(self, parameters):
        for s, p in zip(self.shadow_params, parameters):
            p.data.copy_(s.data)

    def store(self, parameters):
        self.collected_params = [p.detach().clone() for p in parameters]

    def restore(self, parameters):
        for c, p in zip(self.collected_params, parameters):
            p.data.copy_(c.data)
        self.collected_params = None

    def state_dict(self):
        return {"decay": self.decay, "shadow_params": copy.deepcopy(self.shadow_params)}


class Denoiser(nn.Module):
    def __init__(self, hidden=64, freqs=8):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, math.log(100.0), freqs)))
        self.net = nn.Sequential(nn.Linear(2 + 2 * freqs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, 2))

    def forward(self, sample, t):
        angle = t[:, None].float() / 40 * self.freqs
        return self.net(torch.cat([sample, angle.sin(), angle.cos()], dim=1))


class Scheduler:
    def __init__(self, steps):
        self.betas = torch.linspace(1e-3, 0.2, steps)
        self.alphas = 1 - self.betas
        self.alphas_cumprod = self.alphas.cumprod(0)

    def add_noise(self, clean, noise, t):
        a = self.alphas_cumprod[t][:, None]
        return a.sqrt() * clean + (1 - a).sqrt() * noise

    def step(self, eps, t, sample, generator):
        mean = (sample - self.betas[t] / (1 - self.alphas_cumprod[t]).sqrt() * eps) / self.alphas[t].sqrt()
        if t == 0:
            return mean
        return mean + self.betas[t].sqrt() * torch.randn(sample.shape, generator=generator)


class Pipeline:
    def __init__(self, unet, scheduler):
        self.unet = unet
        self.scheduler = scheduler

    @torch.no_grad()
    def __call__(self, batch_size, generator):
        sample = torch.randn(batch_size, 2, generator=generator)
        for t in reversed(range(len(self.scheduler.betas))):
            eps = self.unet(sample, torch.full((batch_size,), t))
            sample = self.scheduler.step(eps, t, sample, generator)
        return sample


def ring(n):
    angle = torch.rand(n) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1) * 1.5 + 0.05 * torch.randn(n, 2)


def train(config, model, scheduler):
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    ema_model = EMAModel(model.parameters(), decay=config.ema_decay)
    for epoch in range(config.num_epochs):
        model.train()
        total = 0.0
        for _ in range(config.steps_per_epoch):
            clean = ring(config.train_batch_size)
            noise = torch.randn_like(clean)
            t = torch.randint(0, config.num_train_timesteps, (clean.shape[0],))
            loss = F.mse_loss(model(scheduler.add_noise(clean, noise, t), t), noise)
            loss.backward()
            optimizer.step()
            ema_model.step(model.parameters())
            optimizer.zero_grad()
            total += loss.item()
        print(f"epoch {epoch} loss {total / config.steps_per_epoch:.4f}")

        if epoch % config.save_images_epochs == 0 or epoch == config.num_epochs - 1:
            unet = copy.deepcopy(model)
            unet.eval()
            ema_model.copy_to(unet.parameters())
            pipeline = Pipeline(unet, scheduler)
            points = pipeline(256, torch.Generator().manual_seed(config.seed))
            print(f"  mean radius of samples {points.norm(dim=1).mean().item():.3f}")
    return model, ema_model


def main():
    config = TrainingConfig()
    torch.manual_seed(config.seed)
    return train(config, Denoiser(), Scheduler(config.num_train_timesteps))


if __name__ == "__main__":
    main()
