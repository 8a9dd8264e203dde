"""Conditional tabular generator trained with a Wasserstein critic and a gradient penalty."""
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.fc = nn.Linear(i, o)
        self.bn = nn.BatchNorm1d(o)

    def forward(self, x):
        return torch.cat([torch.relu(self.bn(self.fc(x))), x], dim=1)


class Generator(nn.Module):
    def __init__(self, z_dim, cond_dim, data_dim, hidden=32):
        super().__init__()
        self.seq = nn.Sequential(Residual(z_dim + cond_dim, hidden), Residual(z_dim + cond_dim + hidden, hidden),
                                 nn.Linear(z_dim + cond_dim + 2 * hidden, data_dim))

    def forward(self, z, cond):
        return self.seq(torch.cat([z, cond], dim=1))


class Discriminator(nn.Module):
    def __init__(self, data_dim, cond_dim, pac=4, hidden=64):
        super().__init__()
        self.pac = pac
        self.width = (data_dim + cond_dim) * pac
        self.seq = nn.Sequential(nn.Linear(self.width, hidden), nn.LeakyReLU(0.2),
                                 nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1))

    def calc_gradient_penalty(self, real, fake, lambda_=10.0):
        alpha = torch.rand(real.shape[0] // self.pac, 1, 1)
        alpha = alpha.repeat(1, self.pac, real.shape[1]).view(-1, real.shape[1])
        interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        scores = self(interpolates)
        gradients = torch.autograd.grad(outputs=scores.sum(), inputs=interpolates, retain_graph=True)[0]
        norm = gradients.view(-1, self.width).norm(2, dim=1)
        return ((norm - 1) ** 2).mean() * lambda_

    def forward(self, x):
        return self.seq(x.reshape(-1, self.width))


class Sampler:
    def __init__(self, n, generator):
        self.cond = torch.randint(0, 3, (n,), generator=generator)
        centre = torch.tensor([[-2.0, 0.0, 1.0], [0.0, 2.0, -1.0], [2.0, -1.0, 0.0]])
        scale = torch.tensor([[0.2, 0.6, 0.3], [0.5, 0.2, 0.3], [0.3, 0.3, 0.8]])
        noise = torch.randn(n, 3, generator=generator)
        self.data = centre[self.cond] + scale[self.cond] * noise
        self.onehot = nn.functional.one_hot(self.cond, 3).float()

    def sample(self, n):
        idx = torch.randint(0, len(self.data), (n,))
        return self.data[idx], self.onehot[idx]


class Synthesizer:
    def __init__(self, z_dim=8, batch_size=64, discriminator_steps=3):
        self.z_dim, self.batch_size, self.discriminator_steps = z_dim, batch_size, discriminator_steps
        self.generator = Generator(z_dim, 3, 3)
        self.discriminator = Discriminator(3, 3)
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.9), weight_decay=1e-6)
        self.opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9), weight_decay=1e-6)
        self.loss_values = []

    def fit(self, sampler, steps):
        for step in range(steps):
            for _ in range(self.discriminator_steps):
                real, cond = sampler.sample(self.batch_size)
                with torch.no_grad():
                    fake = self.generator(torch.randn(self.batch_size, self.z_dim), cond)
                real_cat = torch.cat([real, cond], dim=1)
                fake_cat = torch.cat([fake, cond], dim=1)
                pen = self.discriminator.calc_gradient_penalty(real_cat, fake_cat)
                loss_d = self.discriminator(fake_cat).mean() - self.discriminator(real_cat).mean()
                self.opt_d.zero_grad(set_to_none=True)
                (loss_d + pen).backward()
                self.opt_d.step()

            _, cond = sampler.sample(self.batch_size)
            fake = self.generator(torch.randn(self.batch_size, self.z_dim), cond)
            loss_g = -self.discriminator(torch.cat([fake, cond], dim=1)).mean()
            self.opt_g.zero_grad(set_to_none=True)
            loss_g.backward()
            self.opt_g.step()
            self.loss_values.append((loss_g.item(), loss_d.item(), pen.item()))
        return self


def main():
    torch.manual_seed(17)
    sampler = Sampler(2000, torch.Generator().manual_seed(1))
    synthesizer = Synthesizer().fit(sampler, 120)
    for i in (39, 79, 119):
        g, d, _ = synthesizer.loss_values[i]
        print(f"step {i + 1} generator {g:.3f} critic {d:.3f}")
    synthesizer.generator.eval()
    with torch.no_grad():
        fake = synthesizer.generator(torch.randn(2000, 8), sampler.onehot)
    gap = torch.stack([(fake[sampler.cond == c].mean(0) - sampler.data[sampler.cond == c].mean(0)).norm() for c in range(3)])
    print(f"distance of the class means {gap.mean().item():.3f}")
    return synthesizer, gap


if __name__ == "__main__":
    main()
