"""Train a Behler-Parrinello style network on energies and forces."""
import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    epochs: int = 25
    batch_size: int = 16
    lr: float = 2e-3
    force_weight: float = 10.0
    eta: float = 4.0
    shifts: tuple = field(default=(0.6, 0.9, 1.2, 1.5, 1.8, 2.1, 2.4))
    seed: int = 3


def lennard_jones(pos):
    n = pos.size(1)
    i, j = torch.triu_indices(n, n, 1)
    d = (pos[:, i] - pos[:, j]).norm(dim=-1).clamp(min=0.75)
    return (0.4 * (d ** -8 - 2 * d ** -4)).sum(-1)


def sample(n, seed):
    gen = torch.Generator().manual_seed(seed)
    grid = torch.tensor([[0., 0, 0], [1.1, 0, 0], [0, 1.1, 0], [0, 0, 1.1]])
    pos = (grid + 0.12 * torch.randn(n, 4, 3, generator=gen)).requires_grad_()
    energy = lennard_jones(pos)
    (g,) = torch.autograd.grad(energy.sum(), pos)
    return pos.detach(), energy.detach(), -g


class SymmetryFunctions(nn.Module):
    def __init__(self, cfg, cutoff=3.5):
        super().__init__()
        self.eta, self.cutoff = cfg.eta, cutoff
        self.register_buffer("shifts", torch.tensor(cfg.shifts))

    def forward(self, pos):
        vec = pos[:, :, None] - pos[:, None]
        eye = torch.eye(pos.size(1), dtype=torch.bool)
        d = (vec + eye[..., None].float()).norm(dim=-1)
        fc = 0.5 * (torch.cos(math.pi * d / self.cutoff) + 1) * (d < self.cutoff)
        g = torch.exp(-self.eta * (d[..., None] - self.shifts) ** 2) * fc[..., None]
        return (g * ~eye[None, :, :, None]).sum(2)


class AtomicNetwork(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        n = len(cfg.shifts)
        self.aev = SymmetryFunctions(cfg)
        self.net = nn.Sequential(nn.Linear(n, 32), nn.CELU(0.1), nn.Linear(32, 16), nn.CELU(0.1), nn.Linear(16, 1))
        self.self_energy = nn.Parameter(torch.zeros(()))

    def forward(self, pos):
        return (self.net(self.aev(pos)).squeeze(-1) + self.self_energy).sum(-1)


class Checkpoint:
    def __init__(self):
        self.best, self.state = float("inf"), None

    def update(self, rmse, model):
        if rmse < self.best:
            self.best = rmse
            self.state = {k: v.clone() for k, v in model.state_dict().items()}


def predict(model, pos):
    pos = pos.clone().requires_grad_(True)
    energies = model(pos)
    forces = -torch.autograd.grad(energies.sum(), pos, create_graph=True)[0]
    return energies, forces


def validate(model, data):
    model.eval()
    pos, e, f = data
    pe, pf = predict(model, pos)
    model.train()
    return (pe - e).detach().pow(2).mean().sqrt().item(), (pf - f).detach().pow(2).mean().sqrt().item()


def train(cfg):
    torch.manual_seed(cfg.seed)
    train_set, val_set = sample(160, 1), sample(64, 2)
    model = AtomicNetwork(cfg)
    decay, plain = [], []
    for name, p in model.named_parameters():
        (decay if name.endswith("weight") else plain).append(p)
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 1e-5}, {"params": plain, "weight_decay": 0.0}], lr=cfg.lr)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=8)
    ckpt = Checkpoint()
    for epoch in range(cfg.epochs):
        order = torch.randperm(train_set[0].size(0))
        running = 0.0
        for idx in order.split(cfg.batch_size):
            pos, e, f = (t[idx] for t in train_set)
            pe, pf = predict(model, pos)
            energy_loss = F.mse_loss(pe, e) / math.sqrt(pos.size(1))
            force_loss = F.mse_loss(pf, f)
            loss = energy_loss + cfg.force_weight * force_loss
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
        e_rmse, f_rmse = validate(model, val_set)
        sched.step(e_rmse)
        ckpt.update(e_rmse, model)
        if epoch % 8 == 0:
            print(f"epoch {epoch}: loss {running:.3f} energy rmse {e_rmse:.4f} force rmse {f_rmse:.4f}")
    return {"val_energy_rmse": e_rmse, "val_force_rmse": f_rmse, "best": ckpt.best}


def main():
    return train(Config())


if __name__ == "__main__":
    main()
