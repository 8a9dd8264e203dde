import math

import torch
import torch.nn as nn


class GaussianSmearing(nn.Module):
    def __init__(self, start=0.5, stop=4.0, n=16):
        super().__init__()
        self.register_buffer("offset", torch.linspace(start, stop, n))
        self.coeff = -0.5 / ((stop - start) / (n - 1)) ** 2

    def forward(self, dist):
        return torch.exp(self.coeff * (dist.unsqueeze(-1) - self.offset) ** 2)


class Representation(nn.Module):
    def __init__(self, n_feat=32, dropout=0.1):
        super().__init__()
        self.smear = GaussianSmearing()
        self.filter = nn.Sequential(nn.Linear(16, n_feat), nn.SiLU(), nn.Linear(n_feat, n_feat))
        self.mix = nn.Sequential(nn.Linear(n_feat, n_feat), nn.SiLU(), nn.Dropout(dropout))

    def forward(self, positions):
        n = positions.shape[1]
        diff = positions.unsqueeze(1) - positions.unsqueeze(2)
        i, j = torch.triu_indices(n, n, 1)
        dist = diff[:, i, j].pow(2).sum(-1).sqrt()
        return self.mix(self.filter(self.smear(dist)))


class EnergyForces(nn.Module):
    def __init__(self, n_feat=32, derivative="forces"):
        super().__init__()
        self.out = nn.Sequential(nn.Linear(n_feat, 16), nn.SiLU(), nn.Linear(16, 1))
        self.derivative = derivative

    def forward(self, features, positions):
        energy = self.out(features).sum(dim=(1, 2))
        result = {"energy": energy}
        if self.derivative is not None:
            create_graph = self.training
            grad = torch.autograd.grad(energy, positions, torch.ones_like(energy),
                                       create_graph=create_graph, retain_graph=True)[0]
            result[self.derivative] = -grad
        return result


class AtomisticModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.representation = Representation()
        self.output = EnergyForces()

    def forward(self, positions):
        positions = positions.detach().requires_grad_(True)
        return self.output(self.representation(positions), positions)


class Cluster:
    def __init__(self, n_atoms=5, size=64, scale=1.0, seed=0):
        g = torch.Generator().manual_seed(seed)
        ring = torch.arange(n_atoms) * 2 * math.pi / n_atoms
        base = torch.stack([ring.cos(), ring.sin(), torch.zeros_like(ring)], -1) * 1.6
        self.pos = base + 0.15 * torch.randn(size, n_atoms, 3, generator=g)
        pos = self.pos.clone().requires_grad_(True)
        i, j = torch.triu_indices(n_atoms, n_atoms, 1)
        d = (pos[:, i] - pos[:, j]).pow(2).sum(-1).sqrt()
        e = (scale * ((1 - torch.exp(-1.2 * (d - 1.8))) ** 2 - 1)).sum(1)
        f = -torch.autograd.grad(e.sum(), pos)[0]
        self.energy, self.forces = e.detach(), f

    def batches(self, batch_size):
        perm = torch.randperm(len(self.pos))
        for k in perm.split(batch_size):
            yield self.pos[k], self.energy[k], self.forces[k]


def run_epoch(model, data, optimizer, rho):
    total, force_err = 0.0, 0.0
    for pos, energy, forces in data.batches(16):
        optimizer.zero_grad()
        pred = model(pos)
        loss_e = (pred["energy"] - energy).pow(2).mean()
        loss_f = (pred["forces"] - forces).pow(2).mean()
        loss = rho * loss_e + (1 - rho) * loss_f
        loss.backward()
        optimizer.step()
        total += loss.item()
        force_err += loss_f.item()
    return total / 4, force_err / 4


def main():
    torch.manual_seed(0)
    model = AtomisticModel()
    source = Cluster(scale=1.0, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(10):
        loss, force = run_epoch(model, source, optimizer, rho=0.1)
    print(f"pretrain loss {loss:.4f} forces {force:.4f}")

    target = Cluster(scale=1.5, seed=2)
    model.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(25):
        loss, force = run_epoch(model, target, optimizer, rho=0.02)
        if (epoch + 1) % 5 == 0:
            print(f"finetune {epoch + 1:2d} loss {loss:.4f} forces {force:.4f}")


if __name__ == "__main__":
    main()
