import math

import torch
from torch import nn


def pair_terms(positions, charges, alpha):
    n = positions.shape[0]
    eye = torch.eye(n, dtype=positions.dtype)
    delta = positions[:, None, :] - positions[None, :, :]
    r = (delta.pow(2).sum(-1) + eye).sqrt()
    off = 1.0 - eye
    potential = off * torch.erfc(alpha * r) / r
    slope = off * (
        -torch.erfc(alpha * r) / r**2
        - 2.0 * alpha / math.sqrt(math.pi) * torch.exp(-((alpha * r) ** 2)) / r
    )
    qq = charges[:, None] * charges[None, :]
    energy = 0.5 * (qq * potential).sum()
    position_deriv = ((qq * slope / r)[..., None] * delta).sum(dim=1)
    charge_deriv = potential @ charges
    return energy, position_deriv, charge_deriv


class ScreenedCoulomb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, positions, charges, alpha):
        energy, _, _ = pair_terms(positions, charges, alpha)
        ctx.save_for_backward(positions, charges)
        ctx.alpha = alpha
        return energy

    @staticmethod
    def backward(ctx, grad_energy):
        positions, charges = ctx.saved_tensors
        _, position_deriv, charge_deriv = pair_terms(positions, charges, ctx.alpha)
        return grad_energy * position_deriv, grad_energy * charge_deriv, None


def target(positions, charges):
    return ScreenedCoulomb.apply(positions, charges, 0.4)


def make_inputs():
    generator = torch.Generator().manual_seed(5)
    grid = torch.tensor([[0.0, 0, 0], [1.4, 0, 0], [0, 1.6, 0.2]], dtype=torch.float64)
    positions = grid + 0.1 * torch.randn(3, 3, generator=generator, dtype=torch.float64)
    charges = torch.randn(3, generator=generator, dtype=torch.float64)
    return positions.requires_grad_(), charges.requires_grad_()


class ChargeModel(nn.Module):
    def __init__(self, n_species=3, width=16):
        super().__init__()
        self.embedding = nn.Embedding(n_species, width)
        self.mlp = nn.Sequential(nn.Linear(2 * width, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, species, positions):
        h = self.embedding(species)
        delta = positions[:, None] - positions[None]
        weight = torch.exp(-0.5 * delta.pow(2).sum(-1))
        context = weight @ h
        q = self.mlp(torch.cat([h, context], dim=-1)).squeeze(-1)
        return q - q.mean()


class Potential(nn.Module):
    def __init__(self, alpha=0.4):
        super().__init__()
        self.charges = ChargeModel()
        self.alpha = alpha

    def forward(self, species, positions):
        charges = self.charges(species, positions)
        energy = ScreenedCoulomb.apply(positions, charges, self.alpha)
        forces = -torch.autograd.grad(energy, positions, create_graph=self.training)[0]
        return energy, forces


def make_dataset(n_frames=24, n_atoms=6, alpha=0.4):
    base = torch.stack(
        torch.meshgrid(torch.arange(3.0), torch.arange(2.0), torch.arange(1.0), indexing="ij"), -1
    ).reshape(-1, 3)
    table = torch.tensor([0.9, -0.5, -0.4])
    frames = []
    for _ in range(n_frames):
        species = torch.randint(3, (n_atoms,))
        positions = 1.5 * base + 0.15 * torch.randn(n_atoms, 3)
        charges = table[species]
        charges = charges - charges.mean()
        energy, derivative, _ = pair_terms(positions, charges, alpha)
        frames.append((species, positions, energy, -derivative))
    return frames


def train_epoch(model, frames, optimizer, force_weight):
    model.train()
    total = 0.0
    for species, positions, energy_ref, forces_ref in frames:
        positions = positions.clone().requires_grad_(True)
        energy, forces = model(species, positions)
        loss = 0.01 * (energy - energy_ref).pow(2) + force_weight * (forces - forces_ref).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(frames)


def evaluate(model, frames):
    model.eval()
    errors = []
    for species, positions, _, forces_ref in frames:
        _, forces = model(species, positions.clone().requires_grad_(True))
        errors.append((forces.detach() - forces_ref).pow(2).mean())
    return torch.stack(errors).mean().sqrt().item()


def main():
    torch.manual_seed(7)
    frames = make_dataset()
    train, valid = frames[:18], frames[18:]
    model = Potential()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(30):
        loss = train_epoch(model, train, optimizer, force_weight=10.0)
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1} loss {loss:.5f} force rmse {evaluate(model, valid):.5f}")


if __name__ == "__main__":
    main()
