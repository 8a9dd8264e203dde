"""Style generator on a two-dimensional mixture with lazy R1 regularisation and an averaged generator."""
import copy

import torch
from torch import autograd, nn
from torch.nn import functional as F


def requires_grad(model, flag=True):
    for p in model.parameters():
        p.requires_grad = flag


def accumulate(model1, model2, decay=0.98):
    par1 = dict(model1.named_parameters())
    par2 = dict(model2.named_parameters())
    for k in par1.keys():
        par1[k].data.mul_(decay).add_(par2[k].data, alpha=1 - decay)
    for b1, b2 in zip(model1.buffers(), model2.buffers()):
        b1.copy_(b2)


class EqualLinear(nn.Module):
    def __init__(self, i, o, lr_mul=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i).div_(lr_mul))
        self.bias = nn.Parameter(torch.zeros(o))
        self.scale = lr_mul / i ** 0.5
        self.lr_mul = lr_mul

    def forward(self, x):
        return F.linear(x, self.weight * self.scale, self.bias * self.lr_mul)


class Generator(nn.Module):
    def __init__(self, z=6, hidden=48):
        super().__init__()
        self.style = nn.Sequential(EqualLinear(z, hidden, 0.1), nn.LeakyReLU(0.2), EqualLinear(hidden, hidden, 0.1))
        self.const = nn.Parameter(torch.randn(1, hidden))
        self.out = nn.Sequential(EqualLinear(hidden, hidden), nn.LeakyReLU(0.2), EqualLinear(hidden, 2))
        self.register_buffer("latent_mean", torch.zeros(hidden))

    def forward(self, z):
        w = self.style(F.normalize(z, dim=1))
        if self.training:
            self.latent_mean.lerp_(w.detach().mean(0), 0.01)
        else:
            w = self.latent_mean + 0.9 * (w - self.latent_mean)
        return self.out(self.const * (1 + w))


class Discriminator(nn.Sequential):
    def __init__(self, hidden=48):
        super().__init__(EqualLinear(2, hidden), nn.LeakyReLU(0.2), EqualLinear(hidden, hidden), nn.LeakyReLU(0.2),
                         EqualLinear(hidden, 1))


def d_r1_loss(real_pred, real_img):
    grad_real, = autograd.grad(outputs=real_pred.sum(), inputs=real_img, create_graph=True)
    return grad_real.pow(2).reshape(grad_real.shape[0], -1).sum(1).mean()


def mixture(n):
    centre = torch.tensor([[1.5, 0.0], [-1.0, 1.2], [-1.0, -1.2]])
    return centre[torch.randint(0, 3, (n,))] + 0.1 * torch.randn(n, 2)


def train(steps=120, batch=64, r1=2.0, d_reg_every=8):
    generator, discriminator = Generator(), Discriminator()
    g_ema = copy.deepcopy(generator).eval()
    requires_grad(g_ema, False)
    g_optim = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.99))
    d_optim = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.0, 0.99))
    for i in range(steps):
        real_img = mixture(batch)

        requires_grad(generator, False)
        requires_grad(discriminator, True)
        fake_img = generator(torch.randn(batch, 6))
        d_loss = F.softplus(discriminator(fake_img)).mean() + F.softplus(-discriminator(real_img)).mean()
        discriminator.zero_grad()
        d_loss.backward()
        d_optim.step()

        if i % d_reg_every == 0:
            real_img.requires_grad = True
            real_pred = discriminator(real_img)
            r1_loss = d_r1_loss(real_pred, real_img)
            discriminator.zero_grad()
            (r1 / 2 * r1_loss * d_reg_every + 0 * real_pred[0].sum()).backward()
            d_optim.step()

        requires_grad(generator, True)
        requires_grad(discriminator, False)
        g_loss = F.softplus(-discriminator(generator(torch.randn(batch, 6)))).mean()
        generator.zero_grad()
        g_loss.backward()
        g_optim.step()
        with torch.no_grad():
            accumulate(g_ema, generator)
        if i % 40 == 39:
            print(f"{i + 1}: d {d_loss.item():.3f} g {g_loss.item():.3f} r1 {r1_loss.item():.4f}")
    return g_ema


def main():
    torch.manual_seed(9)
    g_ema = train()
    with torch.no_grad():
        sample = g_ema(torch.randn(500, 6))
    print(f"spread of samples {sample.std(0).tolist()}")


if __name__ == "__main__":
    main()
