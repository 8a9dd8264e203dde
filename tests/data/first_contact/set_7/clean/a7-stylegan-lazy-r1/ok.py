import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class EqualLinear(nn.Module):
    def __init__(self, cin, cout, lr_mul=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin) / lr_mul)
        self.bias = nn.Parameter(torch.zeros(cout))
        self.scale, self.lr_mul = lr_mul / math.sqrt(cin), lr_mul

    def forward(self, x):
        return F.linear(x, self.weight * self.scale, self.bias * self.lr_mul)


class Generator(nn.Module):
    def __init__(self, z_dim=8, hidden=32):
        super().__init__()
        self.style = nn.Sequential(EqualLinear(z_dim, hidden, 0.1), nn.LeakyReLU(0.2))
        self.const = nn.Parameter(torch.randn(1, hidden))
        self.l1, self.l2 = EqualLinear(hidden, hidden), EqualLinear(hidden, 2)

    def forward(self, z, return_latents=False):
        w = self.style(z)
        h = F.leaky_relu(self.l1(self.const * (1 + w)), 0.2)
        out = self.l2(h * (1 + w))
        return (out, w) if return_latents else out


class Discriminator(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.net = nn.Sequential(EqualLinear(2, hidden), nn.LeakyReLU(0.2),
                                 EqualLinear(hidden, hidden), nn.LeakyReLU(0.2), EqualLinear(hidden, 1))

    def forward(self, x):
        return self.net(x)


def requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad = flag


@torch.no_grad()
def accumulate(ema, model, decay=0.98):
    for a, b in zip(ema.parameters(), model.parameters()):
        a.lerp_(b, 1 - decay)


def r1_penalty(pred, real):
    (grad,) = torch.autograd.grad(pred.sum(), real, create_graph=True)
    return grad.pow(2).sum(1).mean()


def path_regularize(fake, latents, mean_path, decay=0.05):
    noise = torch.randn_like(fake) / math.sqrt(fake.shape[1])
    (grad,) = torch.autograd.grad((fake * noise).sum(), latents, create_graph=True)
    lengths = grad.pow(2).sum(1).sqrt()
    mean_path = mean_path + decay * (lengths.mean() - mean_path)
    return (lengths - mean_path).pow(2).mean(), mean_path.detach()


def swirl(n):
    t = 1.5 * math.pi * torch.rand(n)
    return torch.stack([t.cos() * t / 4, t.sin() * t / 4], 1) + 0.03 * torch.randn(n, 2)


def train(steps=160, batch=48, r1=2.0, d_every=8, g_every=4):
    gen, disc = Generator(), Discriminator()
    ema = copy.deepcopy(gen).eval()
    g_opt = torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.0, 0.99))
    d_opt = torch.optim.Adam(disc.parameters(), lr=2e-3, betas=(0.0, 0.99))
    mean_path = torch.zeros(())
    for i in range(steps):
        requires_grad(gen, False)
        requires_grad(disc, True)
        real = swirl(batch)
        fake = gen(torch.randn(batch, 8))
        d_loss = F.softplus(-disc(real)).mean() + F.softplus(disc(fake)).mean()
        disc.zero_grad()
        d_loss.backward()
        d_opt.step()
        if i % d_every == 0:
            real.requires_grad = True
            pred = disc(real)
            disc.zero_grad()
            (r1 / 2 * r1_penalty(pred, real) * d_every + 0 * pred[0].sum()).backward()
            d_opt.step()

        requires_grad(gen, True)
        requires_grad(disc, False)
        g_loss = F.softplus(-disc(gen(torch.randn(batch, 8)))).mean()
        gen.zero_grad()
        g_loss.backward()
        g_opt.step()
        if i % g_every == 0:
            fake, latents = gen(torch.randn(batch // 2, 8), return_latents=True)
            path_loss, mean_path = path_regularize(fake, latents, mean_path)
            gen.zero_grad()
            (0.5 * g_every * path_loss + 0 * fake[0, 0]).backward()
            g_opt.step()
        accumulate(ema, gen)
        if (i + 1) % 40 == 0:
            with torch.no_grad():
                spread = ema(torch.randn(256, 8)).std(0).mean().item()
            print(f"{i + 1} d {d_loss.item():.4f} g {g_loss.item():.4f} path {mean_path.item():.4f} spread {spread:.4f}")


def main():
    torch.manual_seed(0)
    train()


if __name__ == "__main__":
    main()
