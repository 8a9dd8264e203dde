import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def l2normalize(v, eps=1e-12):
    return v / (v.norm() + eps)


class SNLinear(nn.Linear):
    def __init__(self, in_features, out_features, bias=True, n_power_iterations=1):
        super().__init__(in_features, out_features, bias)
        self.n_power_iterations = n_power_iterations
        self.register_buffer("u", l2normalize(torch.randn(out_features)))
        self.register_buffer("v", l2normalize(torch.randn(in_features)))

    def compute_weight(self):
        if self.training:
            w = self.weight.detach()
            for _ in range(self.n_power_iterations):
                self.v = l2normalize(torch.mv(w.t(), self.u))
                self.u = l2normalize(torch.mv(w, self.v))
        sigma = torch.dot(self.u, torch.mv(self.weight, self.v))
        return self.weight / sigma

    def forward(self, x):
        return F.linear(x, self.compute_weight(), self.bias)


class Generator(nn.Module):
    def __init__(self, z_dim=8, hidden=32):
        super().__init__()
        self.z_dim = z_dim
        self.net = nn.Sequential(nn.Linear(z_dim, hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, 2))

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.l1 = SNLinear(2, hidden)
        self.l2 = SNLinear(hidden, hidden)
        self.l3 = SNLinear(hidden, 1)

    def forward(self, x):
        h = F.leaky_relu(self.l1(x), 0.1)
        h = F.leaky_relu(self.l2(h), 0.1)
        return self.l3(h)


def hinge_d(real, fake):
    return F.relu(1.0 - real).mean() + F.relu(1.0 + fake).mean()


def hinge_g(fake):
    return -fake.mean()


def ring(n, modes=6):
    k = torch.randint(0, modes, (n,)).float()
    angle = 2 * math.pi * k / modes
    return torch.stack([angle.cos(), angle.sin()], -1) + 0.04 * torch.randn(n, 2)


class Trainer:
    def __init__(self, steps=200, batch_size=64, n_dis=2, lr=1e-3):
        self.steps, self.batch_size, self.n_dis = steps, batch_size, n_dis
        self.gen, self.dis = Generator(), Discriminator()
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=lr, betas=(0.0, 0.9))
        self.opt_d = torch.optim.Adam(self.dis.parameters(), lr=4 * lr, betas=(0.0, 0.9))

    def noise(self):
        return torch.randn(self.batch_size, self.gen.z_dim)

    def update_d(self):
        real = ring(self.batch_size)
        with torch.no_grad():
            fake = self.gen(self.noise())
        loss = hinge_d(self.dis(real), self.dis(fake))
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def update_g(self):
        loss = hinge_g(self.dis(self.gen(self.noise())))
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss.item()

    def run(self):
        for step in range(1, self.steps + 1):
            for _ in range(self.n_dis):
                d = self.update_d()
            g = self.update_g()
            if step % 50 == 0:
                with torch.no_grad():
                    radius = self.gen(torch.randn(256, self.gen.z_dim)).norm(dim=1).mean().item()
                print(f"step {step} d {d:.4f} g {g:.4f} radius {radius:.3f}")


def main():
    torch.manual_seed(0)
    Trainer().run()


if __name__ == "__main__":
    main()
