"""WGAN-GP on a ring of Gaussians; the critic uses a fused activation."""
import math
from dataclasses import dataclass

import torch
from torch import autograd, nn


@dataclass
class Options:
    n_critic: int = 4
    iterations: int = 40
    batch_size: int = 64
    latent_dim: int = 4
    hidden: int = 48
    lambda_gp: float = 10.0
    lr: float = 2e-3
    seed: int = 19


class SwishFunction(autograd.Function):
    """x * sigmoid(x) as one node of the graph."""

    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x)
        return x * gate

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grad_output * gate * (1.0 + x * (1.0 - gate))


target = SwishFunction.apply


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(5, 3, dtype=torch.float64, generator=generator).requires_grad_(),)


class Swish(nn.Module):
    def forward(self, x):
        return SwishFunction.apply(x)


class Generator(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(opt.latent_dim, opt.hidden), nn.ReLU(),
            nn.Linear(opt.hidden, opt.hidden), nn.ReLU(),
            nn.Linear(opt.hidden, 2),
        )

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, opt.hidden), Swish(), nn.Linear(opt.hidden, opt.hidden), Swish(), nn.Linear(opt.hidden, 1)
        )

    def forward(self, x):
        return self.net(x)


class Ring:
    def __init__(self, modes=6):
        angle = torch.arange(modes) * (2 * math.pi / modes)
        self.centres = 2.0 * torch.stack([angle.cos(), angle.sin()], dim=1)

    def sample(self, n):
        return self.centres[torch.randint(len(self.centres), (n,))] + 0.1 * torch.randn(n, 2)


class WGANGP:
    def __init__(self, opt):
        self.opt = opt
        self.data = Ring()
        self.G, self.D = Generator(opt), Critic(opt)
        self.g_optimizer = torch.optim.Adam(self.G.parameters(), lr=opt.lr, betas=(0.5, 0.9))
        self.d_optimizer = torch.optim.Adam(self.D.parameters(), lr=opt.lr, betas=(0.5, 0.9))

    def noise(self):
        return torch.randn(self.opt.batch_size, self.opt.latent_dim)

    def gradient_penalty(self, real, fake):
        eta = torch.rand(len(real), 1)
        interpolated = (eta * real + (1 - eta) * fake).requires_grad_(True)
        prob = self.D(interpolated)
        gradients = autograd.grad(
            outputs=prob, inputs=interpolated, grad_outputs=torch.ones_like(prob), create_graph=True
        )[0]
        return ((gradients.norm(2, dim=1) - 1) ** 2).mean()

    def critic_step(self):
        real = self.data.sample(self.opt.batch_size)
        with torch.no_grad():
            fake = self.G(self.noise())
        penalty = self.gradient_penalty(real, fake)
        loss = self.D(fake).mean() - self.D(real).mean() + self.opt.lambda_gp * penalty
        self.d_optimizer.zero_grad()
        loss.backward()
        self.d_optimizer.step()
        return loss.item(), penalty.item()

    def generator_step(self):
        loss = -self.D(self.G(self.noise())).mean()
        self.g_optimizer.zero_grad()
        loss.backward()
        self.g_optimizer.step()
        return loss.item()

    def train(self):
        penalties = []
        for iteration in range(self.opt.iterations):
            for _ in range(self.opt.n_critic):
                d_loss, penalty = self.critic_step()
                penalties.append(penalty)
            g_loss = self.generator_step()
            if iteration % 10 == 0:
                print(f"{iteration} critic {d_loss:.4f} penalty {penalty:.4f} generator {g_loss:.4f}")
        return penalties


def main():
    opt = Options()
    torch.manual_seed(opt.seed)
    gan = WGANGP(opt)
    penalties = gan.train()
    return {"late_penalty": sum(penalties[-40:]) / 40}


if __name__ == "__main__":
    main()
