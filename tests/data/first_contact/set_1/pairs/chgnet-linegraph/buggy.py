"""Energy / force fitting of a small three-body graph potential."""
import argparse
import random
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Structure:
    pos: torch.Tensor
    energy: torch.Tensor
    forces: torch.Tensor


def reference_energy(pos):
    n = pos.size(0)
    i, j = torch.triu_indices(n, n, 1)
    d = (pos[i] - pos[j]).norm(dim=-1)
    pair = ((1 - torch.exp(-1.2 * (d - 1.3))) ** 2 - 1).sum()
    vec = pos[None] - pos[:, None]
    unit = vec / (vec.norm(dim=-1, keepdim=True) + 1e-6)
    cos = torch.einsum("iaf,ibf->iab", unit, unit)
    off = ~torch.eye(n, dtype=torch.bool)
    mask = off[:, :, None] & off[:, None, :] & off[None]
    return pair + 0.3 * ((cos + 0.33) ** 2 * mask).sum() / 2


def make_dataset(n, atoms, seed):
    gen = torch.Generator().manual_seed(seed)
    base = torch.randn(atoms, 3, generator=torch.Generator().manual_seed(1)) * 1.1
    out = []
    for _ in range(n):
        pos = (base + 0.12 * torch.randn(atoms, 3, generator=gen)).requires_grad_()
        e = reference_energy(pos)
        (g,) = torch.autograd.grad(e, pos)
        out.append(Structure(pos.detach(), e.detach(), -g))
    return out


def neighbour_list(pos, cutoff):
    d = torch.cdist(pos.detach(), pos.detach())
    src, dst = torch.nonzero((d < cutoff) & (d > 0), as_tuple=True)
    return src, dst


def directed_line_graph(src, dst, bond_vec):
    n_edges = src.size(0)
    e1, e2 = torch.nonzero(src[:, None] == src[None, :], as_tuple=True)
    keep = e1 != e2
    e1, e2 = e1[keep], e2[keep]
    a, b = bond_vec[e1], bond_vec[e2]
    cos = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
    return e1, e2, cos, n_edges


class RadialBasis(nn.Module):
    def __init__(self, n, cutoff):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.4, cutoff, n))
        self.width = n / cutoff

    def forward(self, d):
        return torch.exp(-((d[:, None] - self.centres) * self.width * 0.5) ** 2)


class ThreeBodyPotential(nn.Module):
    def __init__(self, hidden=24, cutoff=4.0):
        super().__init__()
        self.cutoff = cutoff
        self.basis = RadialBasis(12, cutoff)
        self.bond = nn.Sequential(nn.Linear(12, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.angle = nn.Sequential(nn.Linear(3, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.readout = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, pos):
        src, dst = neighbour_list(pos, self.cutoff)
        bond_vec = pos[dst] - pos[src]
        bond_dist = bond_vec.norm(dim=-1)
        h = self.bond(self.basis(bond_dist))
        with torch.no_grad():
            e1, e2, cos, n_edges = directed_line_graph(src, dst, bond_vec)
        feats = torch.stack([cos, cos ** 2, cos ** 3], dim=-1)
        m = self.angle(feats) * h[e2]
        h = h + torch.zeros_like(h).index_add(0, e1, m) / 4
        return self.readout(h).sum()


class PotentialTrainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.opt = torch.optim.Adam(model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.97)

    def predict(self, s, training):
        pos = s.pos.clone().requires_grad_()
        energy = self.model(pos)
        (grad,) = torch.autograd.grad(energy, pos, create_graph=training)
        return energy, -grad

    def train_epoch(self, data):
        self.model.train()
        total = 0.0
        random.shuffle(data)
        for k in range(0, len(data), self.args.batch_size):
            self.opt.zero_grad()
            batch = data[k:k + self.args.batch_size]
            loss = 0.0
            for s in batch:
                e, f = self.predict(s, training=True)
                loss = loss + 0.05 * (e - s.energy) ** 2 + ((f - s.forces) ** 2).mean()
            loss = loss / len(batch)
            loss.backward()
            self.opt.step()
            total += loss.item()
        self.sched.step()
        return total

    def validate(self, data):
        self.model.eval()
        return sum((self.predict(s, False)[1] - s.forces).abs().mean().item() for s in data) / len(data)


def main(argv=()):
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch-size", type=int, default=4)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args(list(argv))
    torch.manual_seed(0)
    random.seed(0)
    train, val = make_dataset(24, 5, 2), make_dataset(8, 5, 3)
    trainer = PotentialTrainer(ThreeBodyPotential(), args)
    for epoch in range(args.epochs):
        loss = trainer.train_epoch(train)
        if epoch % 4 == 3:
            print(f"epoch {epoch + 1}: loss {loss:.4f} val force MAE {trainer.validate(val):.4f}")
    return {"val_force_mae": trainer.validate(val), "trainer": trainer, "val": val}


if __name__ == "__main__":
    main()
