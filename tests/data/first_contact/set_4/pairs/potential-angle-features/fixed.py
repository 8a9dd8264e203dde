"""Machine-learned interatomic potential with two- and three-body features, trained on energies and forces."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    atoms: int = 5
    cutoff: float = 3.0
    num_radial: int = 8
    num_angular: int = 4
    hidden: int = 24
    lr: float = 5e-3
    steps: int = 150
    batch_size: int = 8
    energy_weight: float = 1.0
    force_weight: float = 5.0
    seed: int = 5


def build_edges(n):
    src, dst = zip(*[(i, j) for i in range(n) for j in range(n) if i != j])
    return torch.tensor(src), torch.tensor(dst)


def build_line_graph(src, dst):
    """Pairs of directed bonds that leave the same atom."""
    pairs = [(a, b) for a in range(len(src)) for b in range(len(src)) if src[a] == src[b] and a < b]
    return torch.tensor(pairs).t()


def angle_geometry(bond_vec, bond_dist, line_graph):
    a, b = line_graph
    cosine = (bond_vec[:, a] * bond_vec[:, b]).sum(-1) / (bond_dist[:, a] * bond_dist[:, b])
    return cosine.clamp(-1 + 1e-6, 1 - 1e-6), torch.exp(-bond_dist[:, a] - bond_dist[:, b])


class Potential(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("centers", torch.linspace(0.5, cfg.cutoff, cfg.num_radial))
        self.src, self.dst = build_edges(cfg.atoms)
        self.line_graph = build_line_graph(self.src.tolist(), self.dst.tolist())
        self.pair = nn.Sequential(nn.Linear(cfg.num_radial, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, 1))
        self.triple = nn.Sequential(nn.Linear(cfg.num_angular + 1, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, 1))

    def energy(self, positions):
        bond_vec = positions[:, self.dst] - positions[:, self.src]
        bond_dist = bond_vec.norm(dim=-1)
        radial = torch.exp(-4.0 * (bond_dist.unsqueeze(-1) - self.centers) ** 2)
        two_body = self.pair(radial).sum(dim=(1, 2))
        cosine, decay = angle_geometry(bond_vec, bond_dist, self.line_graph)
        powers = torch.stack([cosine ** k for k in range(1, self.cfg.num_angular + 1)] + [decay], dim=-1)
        three_body = (self.triple(powers).squeeze(-1) * decay).sum(dim=1)
        return two_body + three_body

    def forward(self, positions):
        positions = positions.detach().requires_grad_(True)
        energy = self.energy(positions)
        gradient, = torch.autograd.grad(energy.sum(), positions, create_graph=self.training)
        return energy, -gradient


def reference(positions, model):
    positions = positions.detach().requires_grad_(True)
    bond_vec = positions[:, model.dst] - positions[:, model.src]
    bond_dist = bond_vec.norm(dim=-1)
    cosine, decay = angle_geometry(bond_vec, bond_dist, model.line_graph)
    energy = 0.2 * ((bond_dist - 1.5) ** 2).sum(1) + 4.0 * ((cosine + 1 / 3) ** 2 * decay).sum(1)
    gradient, = torch.autograd.grad(energy.sum(), positions)
    return energy.detach(), -gradient


def make_structures(cfg, n, generator):
    base = torch.randn(cfg.atoms, 3, generator=torch.Generator().manual_seed(1)) * 1.3
    return base + 0.15 * torch.randn(n, cfg.atoms, 3, generator=generator)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Potential(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, cfg.steps)

    def step(self, positions):
        self.model.train()
        energy_ref, force_ref = reference(positions, self.model)
        energy, force = self.model(positions)
        loss = (self.cfg.energy_weight * (energy - energy_ref).pow(2).mean()
                + self.cfg.force_weight * (force - force_ref).pow(2).mean())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def evaluate(self, positions):
        self.model.eval()
        energy_ref, force_ref = reference(positions, self.model)
        energy, force = self.model(positions)
        return (energy.detach() - energy_ref).abs().mean().item(), (force - force_ref).abs().mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    test = make_structures(cfg, 32, generator)
    for step in range(cfg.steps):
        loss = trainer.step(make_structures(cfg, cfg.batch_size, generator))
        if step % 50 == 0:
            print(f"step {step} loss {loss:.4f}")
    energy_mae, force_mae = trainer.evaluate(test)
    print(f"test energy {energy_mae:.4f} force {force_mae:.4f}")
    return {"energy_mae": energy_mae, "force_mae": force_mae, "model": trainer.model, "test": test}


if __name__ == "__main__":
    main()
