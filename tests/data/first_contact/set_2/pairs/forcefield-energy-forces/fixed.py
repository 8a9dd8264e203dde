"""Train a small pair-potential network on energies and forces of toy clusters."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    atoms: int = 5
    structures: int = 96
    hidden: int = 32
    rbf: int = 12
    cutoff: float = 4.0
    lr: float = 3e-3
    batch_size: int = 16
    epochs: int = 25
    force_weight: float = 10.0
    seed: int = 1


def morse(positions):
    distance = torch.pdist(positions)
    return ((1 - torch.exp(-1.2 * (distance - 1.5))) ** 2 - 1).sum()


def make_dataset(settings):
    grid = torch.tensor([[0., 0., 0.], [1.6, 0., 0.], [0., 1.6, 0.], [0., 0., 1.6], [1.6, 1.6, 0.]])
    positions, energies, forces = [], [], []
    for _ in range(settings.structures):
        pos = (grid + 0.15 * torch.randn_like(grid)).requires_grad_()
        energy = morse(pos)
        (gradient,) = torch.autograd.grad(energy, pos)
        positions.append(pos.detach())
        energies.append(energy.detach())
        forces.append(-gradient)
    return TensorDataset(torch.stack(positions), torch.stack(energies), torch.stack(forces))


class PairPotential(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.register_buffer("centers", torch.linspace(0.5, settings.cutoff, settings.rbf))
        self.width = settings.cutoff / settings.rbf
        self.filter = nn.Sequential(
            nn.Linear(settings.rbf, settings.hidden), nn.SiLU(),
            nn.Linear(settings.hidden, settings.hidden), nn.SiLU(),
            nn.Linear(settings.hidden, 1),
        )
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, positions):
        atoms = positions.shape[1]
        i, j = torch.triu_indices(atoms, atoms, offset=1)
        distance = (positions[:, i] - positions[:, j]).norm(dim=-1, keepdim=True)
        rbf = torch.exp(-((distance - self.centers) / self.width) ** 2)
        return self.filter(rbf).sum(dim=(1, 2)) + self.shift


class ForceTrainer:
    def __init__(self, model, settings):
        self.model = model
        self.settings = settings
        self.optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.97)
        self.mse = nn.MSELoss()

    def predict(self, positions):
        positions = positions.clone().requires_grad_(True)
        energy = self.model(positions)
        forces = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
        return energy, forces

    def train_epoch(self, loader):
        self.model.train()
        total_energy, total_force = 0.0, 0.0
        for positions, energies, forces in loader:
            predicted_energy, predicted_forces = self.predict(positions)
            energy_loss = self.mse(predicted_energy, energies)
            force_loss = self.mse(predicted_forces, forces)
            loss = energy_loss + self.settings.force_weight * force_loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total_energy += energy_loss.item()
            total_force += force_loss.item()
        self.scheduler.step()
        return total_energy / len(loader), total_force / len(loader)

    def validate(self, dataset):
        self.model.eval()
        positions, energies, forces = dataset.tensors
        predicted_energy, predicted_forces = self.predict(positions)
        return {
            "energy_mae": (predicted_energy - energies).abs().mean().item(),
            "force_mae": (predicted_forces - forces).abs().mean().item(),
        }


def main(settings=Settings()):
    torch.manual_seed(settings.seed)
    train_set, valid_set = make_dataset(settings), make_dataset(settings)
    loader = DataLoader(train_set, batch_size=settings.batch_size, shuffle=True)
    trainer = ForceTrainer(PairPotential(settings), settings)
    metrics = {}
    for epoch in range(settings.epochs):
        energy_loss, force_loss = trainer.train_epoch(loader)
        if epoch % 8 == 0 or epoch == settings.epochs - 1:
            metrics = trainer.validate(valid_set)
            print(f"epoch {epoch:3d}  E {energy_loss:.4f}  F {force_loss:.4f}  "
                  f"val F MAE {metrics['force_mae']:.4f}")
    return metrics


if __name__ == "__main__":
    main()
