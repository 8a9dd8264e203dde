"""GAN for images with label maps: one critic for images, one for pairs, lazy R1."""
from dataclasses import dataclass

import torch
from torch import autograd, nn
from torch.nn import functional as F


@dataclass
class Args:
    iters: int = 120
    batch: int = 32
    latent: int = 8
    size: int = 12
    r1: float = 10.0
    d_reg_every: int = 4
    lr: float = 2e-3
    ema: float = 0.99
    seed: int = 5


class Generator(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(args.latent, 48), nn.LeakyReLU(0.2))
        self.to_img = nn.Linear(48, args.size)
        self.to_seg = nn.Linear(48, args.size)

    def forward(self, z):
        h = self.net(z)
        return self.to_img(h), torch.tanh(self.to_seg(h))


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1)
        )

    def forward(self, x):
        return self.net(x)


def requires_grad(model, flag=True):
    for p in model.parameters():
        p.requires_grad = flag


def accumulate(target, source, decay):
    for a, b in zip(target.parameters(), source.parameters()):
        a.data.mul_(decay).add_(b.data, alpha=1 - decay)


def d_logistic_loss(real_pred, fake_pred):
    return F.softplus(-real_pred).mean() + F.softplus(fake_pred).mean()


def d_r1_loss(real_pred, real):
    grad_real, = autograd.grad(outputs=real_pred.sum(), inputs=real, create_graph=True)
    return grad_real.pow(2).reshape(grad_real.shape[0], -1).sum(1).mean()


def regularize(args, critic, optim, real):
    real = real.detach().requires_grad_(True)
    real_pred = critic(real)
    r1_loss = d_r1_loss(real_pred, real)
    critic.zero_grad()
    (args.r1 / 2 * r1_loss * args.d_reg_every + 0 * real_pred[0]).backward()
    optim.step()
    return r1_loss.item()


class Sampler:
    def __init__(self, args):
        self.args = args
        self.basis = torch.randn(3, args.size)

    def __call__(self):
        code = torch.randn(self.args.batch, 3)
        img = code @ self.basis + 0.05 * torch.randn(self.args.batch, self.args.size)
        return img, torch.sign(img)


def train(args, sampler, generator, g_ema, d_img, d_seg):
    g_optim = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.0, 0.99))
    d_img_optim = torch.optim.Adam(d_img.parameters(), lr=args.lr, betas=(0.0, 0.99))
    d_seg_optim = torch.optim.Adam(d_seg.parameters(), lr=args.lr, betas=(0.0, 0.99))
    r1_img = r1_seg = 0.0
    for i in range(args.iters):
        real_img, real_seg = sampler()
        real_pair = torch.cat([real_img, real_seg], dim=1)

        requires_grad(generator, False)
        requires_grad(d_img, True)
        requires_grad(d_seg, False)
        fake_img, fake_seg = generator(torch.randn(args.batch, args.latent))
        d_img_loss = d_logistic_loss(d_img(real_img), d_img(fake_img))
        d_img.zero_grad()
        d_img_loss.backward()
        d_img_optim.step()

        requires_grad(d_img, False)
        requires_grad(d_seg, True)
        fake_pair = torch.cat([fake_img, fake_seg], dim=1)
        d_seg_loss = d_logistic_loss(d_seg(real_pair), d_seg(fake_pair))
        d_seg.zero_grad()
        d_seg_loss.backward()
        d_seg_optim.step()

        if i % args.d_reg_every == 0:
            r1_img = regularize(args, d_img, d_img_optim, real_img)
            r1_seg = regularize(args, d_seg, d_seg_optim, real_pair)

        requires_grad(generator, True)
        requires_grad(d_img, False)
        requires_grad(d_seg, False)
        fake_img, fake_seg = generator(torch.randn(args.batch, args.latent))
        g_loss = F.softplus(-d_img(fake_img)).mean()
        g_loss = g_loss + F.softplus(-d_seg(torch.cat([fake_img, fake_seg], dim=1))).mean()
        generator.zero_grad()
        g_loss.backward()
        g_optim.step()
        accumulate(g_ema, generator, args.ema)
        if i % 30 == 0:
            print(f"{i} d_img {d_img_loss.item():.3f} d_seg {d_seg_loss.item():.3f} g {g_loss.item():.3f}")
    return {"r1_img": r1_img, "r1_seg": r1_seg}


def main():
    args = Args()
    torch.manual_seed(args.seed)
    sampler = Sampler(args)
    generator, g_ema = Generator(args), Generator(args)
    requires_grad(g_ema, False)
    accumulate(g_ema, generator, 0.0)
    return train(args, sampler, generator, g_ema, Discriminator(args.size), Discriminator(2 * args.size))


if __name__ == "__main__":
    main()
