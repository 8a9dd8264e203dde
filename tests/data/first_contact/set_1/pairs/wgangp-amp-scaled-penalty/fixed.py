import argparse
import math

import torch
import torch.nn as nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_epochs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--b1", type=float, default=0.0)
    parser.add_argument("--b2", type=float, default=0.9)
    parser.add_argument("--latent_dim", type=int, default=8)
    parser.add_argument("--n_critic", type=int, default=4)
    parser.add_argument("--lambda_gp", type=float, default=10.0)
    parser.add_argument("--init_scale", type=float, default=256.0)
    parser.add_argument("--no_amp", action="store_true")
    return parser.parse_args([])


class Generator(nn.Module):
    def __init__(self, latent_dim):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(latent_dim, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, x):
        return self.model(x).view(x.shape[0], -1)


def real_batches(opt):
    for _ in range(opt.batches):
        angle = torch.randint(0, 8, (opt.batch_size,)) * (2 * math.pi / 8)
        yield torch.stack([angle.cos(), angle.sin()], dim=1) * 2 + 0.05 * torch.randn(opt.batch_size, 2)


class AmpWGANGP:
    def __init__(self, opt):
        self.opt = opt
        self.generator, self.discriminator = Generator(opt.latent_dim), Discriminator()
        betas = (opt.b1, opt.b2)
        self.optimizer_G = torch.optim.Adam(self.generator.parameters(), lr=opt.lr, betas=betas)
        self.optimizer_D = torch.optim.Adam(self.discriminator.parameters(), lr=opt.lr, betas=betas)
        self.scaler_G = torch.amp.GradScaler("cpu", init_scale=opt.init_scale, enabled=not opt.no_amp)
        self.scaler_D = torch.amp.GradScaler("cpu", init_scale=opt.init_scale, enabled=not opt.no_amp)

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=not self.opt.no_amp)

    def gradient_penalty(self, real, fake):
        alpha = torch.rand(real.shape[0], 1)
        interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        with self.autocast():
            d_interpolates = self.discriminator(interpolates)
        gradients = torch.autograd.grad(
            outputs=self.scaler_D.scale(d_interpolates.float().sum()),
            inputs=interpolates,
            create_graph=True,
        )[0] / self.scaler_D.get_scale()
        return ((gradients.flatten(1).norm(2, dim=1) - 1) ** 2).mean()

    def step_D(self, real):
        with torch.no_grad():
            fake = self.generator(torch.randn(real.shape[0], self.opt.latent_dim))
        self.optimizer_D.zero_grad()
        with self.autocast():
            real_validity, fake_validity = self.discriminator(real), self.discriminator(fake)
        d_loss = fake_validity.float().mean() - real_validity.float().mean()
        d_loss = d_loss + self.opt.lambda_gp * self.gradient_penalty(real, fake)
        self.scaler_D.scale(d_loss).backward()
        self.scaler_D.unscale_(self.optimizer_D)
        nn.utils.clip_grad_norm_(self.discriminator.parameters(), 10.0)
        self.scaler_D.step(self.optimizer_D)
        self.scaler_D.update()
        return d_loss.item()

    def step_G(self):
        self.optimizer_G.zero_grad()
        with self.autocast():
            g_loss = -self.discriminator(self.generator(torch.randn(self.opt.batch_size, self.opt.latent_dim))).float().mean()
        self.scaler_G.scale(g_loss).backward()
        self.scaler_G.step(self.optimizer_G)
        self.scaler_G.update()
        return g_loss.item()

    def critic_slope(self):
        x = (2 * torch.randn(256, 2)).requires_grad_(True)
        slope, = torch.autograd.grad(self.discriminator(x).sum(), x)
        return slope.norm(dim=1).mean().item()


def main():
    opt = parse()
    torch.manual_seed(0)
    gan = AmpWGANGP(opt)
    for epoch in range(opt.n_epochs):
        for i, real in enumerate(real_batches(opt)):
            d_loss = gan.step_D(real)
            if i % opt.n_critic == 0:
                g_loss = gan.step_G()
        print(f"[Epoch {epoch + 1}/{opt.n_epochs}] [D loss: {d_loss:.4f}] [G loss: {g_loss:.4f}] [slope: {gan.critic_slope():.4f}]")
    with torch.no_grad():
        radius = gan.generator(torch.randn(512, opt.latent_dim)).norm(dim=1).mean().item()
    return {"critic_slope": gan.critic_slope(), "sample_radius": radius}


if __name__ == "__main__":
    main()
