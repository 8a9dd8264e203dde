"""WGAN-GP on a ring of Gaussians, with several critic steps and an EMA of the generator."""
import copy
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    latent: int = 4
    hidden: int = 32
    batch: int = 48
    iterations: int = 60
    n_critic: int = 3
    penalty: float = 10.0
    ema_decay: float = 0.98
    lr: float = 1e-3
    seed: int = 1


def mlp(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
                         nn.Linear(hidden, outputs))


class EMA:
    def __init__(self, model, decay):
        self.shadow = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for target, source in zip(self.shadow.parameters(), model.parameters()):
            target.lerp_(source, 1 - self.decay)


def sample_ring(n):
    angle = torch.randint(8, (n,)) * (torch.pi / 4)
    return torch.stack([angle.cos(), angle.sin()], dim=1) * 2 + 0.05 * torch.randn(n, 2)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(len(real), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (gradient.norm(dim=1) - 1).pow(2).mean()


class WGAN:
    def __init__(self, cfg):
        self.cfg = cfg
        self.generator = mlp(cfg.latent, cfg.hidden, 2)
        self.critic = mlp(2, cfg.hidden, 1)
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=cfg.lr, betas=(0.0, 0.9))
        self.c_optimizer = torch.optim.Adam(self.critic.parameters(), lr=cfg.lr, betas=(0.0, 0.9))
        self.ema = EMA(self.generator, cfg.ema_decay)

    def noise(self):
        return torch.randn(self.cfg.batch, self.cfg.latent)

    def critic_step(self):
        self.critic.requires_grad_(True)
        real = sample_ring(self.cfg.batch)
        with torch.no_grad():
            fake = self.generator(self.noise())
        wasserstein = self.critic(fake).mean() - self.critic(real).mean()
        loss = wasserstein + self.cfg.penalty * gradient_penalty(self.critic, real, fake)
        self.c_optimizer.zero_grad()
        loss.backward()
        self.c_optimizer.step()
        return -wasserstein.item()

    def generator_step(self):
        self.critic.requires_grad_(False)
        loss = -self.critic(self.generator(self.noise())).mean()
        self.g_optimizer.zero_grad()
        loss.backward()
        self.g_optimizer.step()
        self.ema.update(self.generator)
        return loss.item()


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    gan = WGAN(cfg)
    for iteration in range(1, cfg.iterations + 1):
        for _ in range(cfg.n_critic):
            distance = gan.critic_step()
        gan.generator_step()
        if iteration % 20 == 0:
            with torch.no_grad():
                radius = gan.ema.shadow(gan.noise()).norm(dim=1).mean().item()
            print(f"iter {iteration}  wasserstein {distance:.4f}  EMA radius {radius:.3f}")
    return distance


if __name__ == "__main__":
    main()
