"""Image to impulse response: conditional GAN with an adversarial and a spectral term."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class HParams:
    image_dim: int = 16
    feature_dim: int = 12
    spec_dim: int = 24
    noise_dim: int = 4
    g_lr: float = 1e-3
    d_lr: float = 2e-3
    lambda_a: float = 5.0
    batch_size: int = 32
    epochs: int = 5
    batches: int = 24
    seed: int = 11


class Encoder(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(hp.image_dim, 32), nn.LeakyReLU(0.2), nn.Linear(32, hp.feature_dim))

    def forward(self, image):
        return self.net(image)


class Generator(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.noise_dim = hp.noise_dim
        self.net = nn.Sequential(
            nn.Linear(hp.feature_dim + hp.noise_dim, 48), nn.LeakyReLU(0.2), nn.Linear(48, hp.spec_dim)
        )

    def forward(self, f):
        z = torch.randn(f.shape[0], self.noise_dim)
        return self.net(torch.cat([f, z], dim=-1))


class Discriminator(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(hp.spec_dim + hp.feature_dim, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))

    def forward(self, spec, f):
        return self.net(torch.cat([spec, f], dim=-1))


def decay_slope(spec):
    t = torch.linspace(-1, 1, spec.shape[-1])
    return (spec * t).mean(dim=-1) / t.pow(2).mean()


class Image2Reverb:
    def __init__(self, hp):
        torch.manual_seed(hp.seed)
        self.hp = hp
        self.enc, self.g, self.d = Encoder(hp), Generator(hp), Discriminator(hp)
        self.mix = torch.randn(hp.image_dim, hp.spec_dim) / hp.image_dim**0.5
        self.logs = []

    def configure_optimizers(self):
        g_optim = torch.optim.Adam(self.g.parameters(), lr=self.hp.g_lr, betas=(0.0, 0.99))
        e_optim = torch.optim.Adam(self.enc.parameters(), lr=self.hp.g_lr)
        d_optim = torch.optim.Adam(self.d.parameters(), lr=self.hp.d_lr, betas=(0.0, 0.99))
        return g_optim, e_optim, d_optim

    def sample_batch(self):
        label = torch.randn(self.hp.batch_size, self.hp.image_dim)
        spec = torch.tanh(label @ self.mix) + 0.3 * torch.randn(self.hp.batch_size, self.hp.spec_dim)
        return spec, label

    def training_step(self, batch, optimizer_idx):
        spec, label = batch
        f = self.enc(label)
        fake_spec = self.g(f)
        if optimizer_idx == 0:
            d_fake = self.d(fake_spec, f)
            g_adv = F.mse_loss(d_fake, torch.ones_like(d_fake))
            g_slope = F.l1_loss(decay_slope(fake_spec), decay_slope(spec))
            return {"loss": g_adv + self.hp.lambda_a * g_slope, "g_adv": g_adv.item(), "g_slope": g_slope.item()}
        d_fake = self.d(fake_spec.detach(), f.detach())
        d_real = self.d(spec, f.detach())
        loss = 0.5 * (F.mse_loss(d_fake, torch.zeros_like(d_fake)) + F.mse_loss(d_real, torch.ones_like(d_real)))
        return {"loss": loss, "d": loss.item(), "d_real": d_real.mean().item()}

    @staticmethod
    def toggle(module, flag):
        for p in module.parameters():
            p.requires_grad_(flag)

    def fit(self):
        g_optim, e_optim, d_optim = self.configure_optimizers()
        for epoch in range(self.hp.epochs):
            for _ in range(self.hp.batches):
                batch = self.sample_batch()
                self.toggle(self.d, False)
                out = self.training_step(batch, 0)
                g_optim.zero_grad()
                e_optim.zero_grad()
                out["loss"].backward()
                g_optim.step()
                e_optim.step()
                self.toggle(self.d, True)
                d_out = self.training_step(batch, 1)
                d_optim.zero_grad()
                d_out["loss"].backward()
                d_optim.step()
            self.logs.append({**out, **d_out, "loss": None})
            print(f"epoch {epoch} adv {out['g_adv']:.3f} slope {out['g_slope']:.3f} D {d_out['d']:.3f}")
        return self


def main():
    return Image2Reverb(HParams()).fit()


if __name__ == "__main__":
    main()
