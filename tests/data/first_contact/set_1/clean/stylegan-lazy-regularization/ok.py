import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mapping(nn.Module):
    def __init__(self, z=8, w=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, w), nn.LeakyReLU(0.2), nn.Linear(w, w), nn.LeakyReLU(0.2))

    def forward(self, z):
        return self.net(F.normalize(z, dim=1))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.mapping = Mapping()
        self.synthesis = nn.Sequential(nn.Linear(16, 48), nn.LeakyReLU(0.2), nn.Linear(48, 2))
        self.register_buffer("w_avg", torch.zeros(16))

    def forward(self, z):
        w = self.mapping(z)
        self.w_avg.copy_(w.detach().mean(0).lerp(self.w_avg, 0.99))
        return self.synthesis(w), w


def set_grad(model, flag):
    for p in model.parameters():
        p.requires_grad = flag


def d_r1_loss(real_pred, real):
    grad_real, = torch.autograd.grad(outputs=real_pred.sum(), inputs=real, create_graph=True)
    return grad_real.pow(2).sum(1).mean()


def g_path_regularize(fake, w, mean_path_length, decay=0.01):
    noise = torch.randn_like(fake) / math.sqrt(fake.shape[1])
    grad, = torch.autograd.grad(outputs=(fake * noise).sum(), inputs=w, create_graph=True)
    lengths = grad.pow(2).sum(1).sqrt()
    path_mean = mean_path_length + decay * (lengths.mean() - mean_path_length)
    return (lengths - path_mean).pow(2).mean(), path_mean.detach()


def real_batch(n):
    t = torch.rand(n) * 2 * math.pi
    return torch.stack([t.cos(), 0.5 * t.sin()], dim=1) + 0.03 * torch.randn(n, 2)


def main():
    torch.manual_seed(1)
    batch, d_every, g_every, r1_weight, path_weight = 64, 8, 4, 5.0, 2.0
    generator = Generator()
    discriminator = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    g_ema = copy.deepcopy(generator).eval()
    set_grad(g_ema, False)
    g_ratio, d_ratio = g_every / (g_every + 1), d_every / (d_every + 1)
    g_optim = torch.optim.Adam(generator.parameters(), lr=2e-3 * g_ratio, betas=(0.0, 0.99 ** g_ratio))
    d_optim = torch.optim.Adam(discriminator.parameters(), lr=2e-3 * d_ratio, betas=(0.0, 0.99 ** d_ratio))
    mean_path_length = torch.zeros(())

    for i in range(160):
        real = real_batch(batch)
        set_grad(generator, False), set_grad(discriminator, True)
        fake, _ = generator(torch.randn(batch, 8))
        d_loss = F.softplus(discriminator(fake)).mean() + F.softplus(-discriminator(real)).mean()
        discriminator.zero_grad()
        d_loss.backward()
        d_optim.step()

        if i % d_every == 0:
            real.requires_grad = True
            r1 = d_r1_loss(discriminator(real), real)
            discriminator.zero_grad()
            (r1_weight / 2 * r1 * d_every).backward()
            d_optim.step()

        set_grad(generator, True), set_grad(discriminator, False)
        fake, _ = generator(torch.randn(batch, 8))
        g_loss = F.softplus(-discriminator(fake)).mean()
        generator.zero_grad()
        g_loss.backward()
        g_optim.step()

        if i % g_every == 0:
            fake, w = generator(torch.randn(batch // 2, 8))
            path_loss, mean_path_length = g_path_regularize(fake, w, mean_path_length)
            generator.zero_grad()
            (path_weight * g_every * path_loss).backward()
            g_optim.step()

        with torch.no_grad():
            for e, p in zip(g_ema.parameters(), generator.parameters()):
                e.lerp_(p, 0.02)
            for e, b in zip(g_ema.buffers(), generator.buffers()):
                e.copy_(b)
        if (i + 1) % 40 == 0:
            print(f"iter {i + 1}  d {d_loss.item():.3f}  g {g_loss.item():.3f}  path {mean_path_length.item():.3f}")
    return {"d": d_loss.item(), "g": g_loss.item()}


if __name__ == "__main__":
    main()
