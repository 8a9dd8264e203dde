"""GAN with one generator pass for both losses (BigGAN style joint step)."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    classes: int = 4
    size: int = 10
    latent: int = 6
    batch: int = 32
    iterations: int = 80
    lr_g: float = 1e-3
    lr_d: float = 2e-3
    ema: float = 0.98
    seed: int = 32


class Generator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.label = nn.Embedding(cfg.classes, cfg.latent)
        self.net = nn.Sequential(nn.Linear(2 * cfg.latent, 48), nn.ReLU(), nn.Linear(48, cfg.size))

    def forward(self, z, y):
        return self.net(torch.cat([z, self.label(y)], 1))


class Discriminator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(cfg.size, 48)), nn.LeakyReLU(0.2)
        )
        self.out = nn.Linear(48, 1)
        self.project = nn.Embedding(cfg.classes, 48)

    def forward(self, x, y):
        h = self.body(x)
        return self.out(h).squeeze(1) + (self.project(y) * h).sum(1)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.means = 1.5 * torch.randn(cfg.classes, cfg.size)
        self.G, self.D, self.G_ema = Generator(cfg), Discriminator(cfg), Generator(cfg)
        self.G_ema.load_state_dict(self.G.state_dict())
        self.G_ema.requires_grad_(False)
        self.g_opt = torch.optim.Adam(self.G.parameters(), lr=cfg.lr_g, betas=(0.0, 0.99))
        self.d_opt = torch.optim.Adam(self.D.parameters(), lr=cfg.lr_d, betas=(0.0, 0.99))

    def step(self):
        y = torch.randint(self.cfg.classes, (self.cfg.batch,))
        real = self.means[y] + 0.3 * torch.randn(self.cfg.batch, self.cfg.size)
        fake = self.G(torch.randn(self.cfg.batch, self.cfg.latent), y)
        fake_score = self.D(fake, y)
        d_loss = F.relu(1 - self.D(real, y)).mean() + F.relu(1 + fake_score).mean()
        g_loss = -fake_score.mean()

        # Both gradients come from the same graph. No weight moves before both are known.
        self.d_opt.zero_grad()
        d_loss.backward(retain_graph=True, inputs=list(self.D.parameters()))
        self.g_opt.zero_grad()
        g_loss.backward(inputs=list(self.G.parameters()))
        self.d_opt.step()
        self.g_opt.step()
        with torch.no_grad():
            for slow, fast in zip(self.G_ema.parameters(), self.G.parameters()):
                slow.lerp_(fast, 1 - self.cfg.ema)
        return d_loss.item(), g_loss.item()

    @torch.no_grad()
    def distance(self):
        y = torch.arange(self.cfg.classes).repeat_interleave(50)
        fake = self.G_ema(torch.randn(len(y), self.cfg.latent), y)
        return (fake - self.means[y]).norm(dim=1).mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    for i in range(cfg.iterations):
        d_loss, g_loss = trainer.step()
        if i % 20 == 0:
            print(f"{i} d {d_loss:.3f} g {g_loss:.3f} distance {trainer.distance():.3f}")
    return trainer.distance()


if __name__ == "__main__":
    main()
