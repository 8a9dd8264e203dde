"""Interatomic potential with two- and three-body features, trained on energies and forces."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    atoms: int = 5
    n_train: int = 96
    n_test: int = 32
    hidden: int = 24
    n_basis: int = 8
    cutoff: float = 3.5
    batch: int = 16
    steps: int = 220
    lr: float = 5e-3
    force_weight: float = 10.0
    seed: int = 19


def all_pairs(n):
    idx = torch.cartesian_prod(torch.arange(n), torch.arange(n))
    return idx[idx[:, 0] != idx[:, 1]].T


def bond_geometry(pos, pairs):
    vec = pos[:, pairs[1]] - pos[:, pairs[0]]
    return vec, vec.norm(dim=-1)


def line_graph(pairs):
    """Pairs of bonds that start at the same atom."""
    n = pairs.shape[1]
    a, b = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    keep = (pairs[0][a] == pairs[0][b]) & (a < b)
    return a[keep], b[keep]


def line_graph_geometry(vec, dist, first, second):
    cos = (vec[:, first] * vec[:, second]).sum(-1) / (dist[:, first] * dist[:, second])
    return cos, dist[:, first], dist[:, second]


def reference_energy(pos, pairs, lines):
    vec, dist = bond_geometry(pos, pairs)
    pair = ((1 - torch.exp(-(dist - 1.5))) ** 2).sum(1) / 2
    cos, d1, d2 = line_graph_geometry(vec, dist, *lines)
    return pair + 1.5 * ((cos + 0.3) ** 2 * torch.exp(-0.5 * (d1 + d2 - 3))).sum(1)


class Potential(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.pairs = all_pairs(cfg.atoms)
        self.lines = line_graph(self.pairs)
        self.register_buffer("centres", torch.linspace(0.5, cfg.cutoff, cfg.n_basis))
        self.bond_net = nn.Sequential(nn.Linear(cfg.n_basis, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, 1))
        self.angle_net = nn.Sequential(nn.Linear(2 * cfg.n_basis + 2, cfg.hidden), nn.SiLU(),
                                       nn.Linear(cfg.hidden, 1))

    def expand(self, d):
        return torch.exp(-2.0 * (d[..., None] - self.centres) ** 2)

    def forward(self, pos):
        vec, dist = bond_geometry(pos, self.pairs)
        energy = self.bond_net(self.expand(dist)).sum(dim=(1, 2))
        cos, d1, d2 = line_graph_geometry(vec, dist, *self.lines)
        angular = torch.stack([cos, cos ** 2], dim=-1)
        features = torch.cat([self.expand(d1), self.expand(d2), angular], dim=-1)
        return energy + self.angle_net(features).sum(dim=(1, 2))


def energy_and_forces(model, pos, training):
    pos = pos.detach().requires_grad_(True)
    energy = model(pos)
    forces = -torch.autograd.grad(energy.sum(), pos, create_graph=training)[0]
    return energy, forces


def make_set(cfg, n, model):
    grid = torch.tensor([[0., 0, 0], [1.5, 0, 0], [0, 1.5, 0], [0, 0, 1.5], [1.2, 1.2, 1.2]])
    pos = (grid + 0.15 * torch.randn(n, cfg.atoms, 3)).requires_grad_(True)
    energy = reference_energy(pos, model.pairs, model.lines)
    forces = -torch.autograd.grad(energy.sum(), pos)[0]
    return pos.detach(), energy.detach(), forces


def force_consistency(model, pos, h=1e-3):
    _, forces = energy_and_forces(model, pos, training=False)
    direction = torch.randn(pos.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        slope = (model(pos + h * direction) - model(pos - h * direction)) / (2 * h)
    return (slope + (forces * direction).sum(dim=(1, 2))).abs().mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = Potential(cfg)
    pos, energy, forces = make_set(cfg, cfg.n_train, model)
    shift = energy.mean()
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        idx = torch.randint(0, cfg.n_train, (cfg.batch,))
        e, f = energy_and_forces(model, pos[idx], training=True)
        loss = (e - energy[idx] + shift).pow(2).mean() + cfg.force_weight * (f - forces[idx]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 70 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    test_pos, _, test_forces = make_set(cfg, cfg.n_test, model)
    _, f = energy_and_forces(model, test_pos, training=False)
    mae = (f - test_forces).abs().mean().item()
    print(f"force MAE {mae:.4f}")
    return {"force_mae": mae, "force_vs_energy_slope": force_consistency(model, test_pos)}


if __name__ == "__main__":
    main()
