"""Equivariant graph network on padded batches of small molecules (radius-of-gyration regression)."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    max_atoms: int = 7
    molecules: int = 128
    hidden: int = 16
    layers: int = 3
    batch: int = 32
    lr: float = 3e-3
    epochs: int = 12
    max_norm: float = 1.0
    seed: int = 6


class EGNNLayer(nn.Module):
    def __init__(self, hidden, move=True):
        super().__init__()
        self.edge_mlp = nn.Sequential(nn.Linear(2 * hidden + 1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.coord_mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)) if move else None
        self.node_mlp = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, h, pos, mask):
        atoms = h.shape[1]
        diff = pos[:, :, None] - pos[:, None, :]
        dist = (diff ** 2).sum(-1, keepdim=True).sqrt()
        pair = mask[:, :, None, None] * mask[:, None, :, None]
        pair = pair * (1 - torch.eye(atoms))[None, :, :, None]
        left = h[:, :, None].expand(-1, -1, atoms, -1)
        right = h[:, None].expand(-1, atoms, -1, -1)
        message = self.edge_mlp(torch.cat([left, right, dist], dim=-1)) * pair
        if self.coord_mlp is not None:
            direction = diff / (dist + 1.0)
            pos = pos + (direction * self.coord_mlp(message) * pair).sum(2) / atoms
        h = h + self.node_mlp(torch.cat([h, message.sum(2)], dim=-1)) * mask[..., None]
        return h, pos * mask[..., None]


class EGNN(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(5, config.hidden, padding_idx=0)
        self.layers = nn.ModuleList(EGNNLayer(config.hidden, move=k + 1 < config.layers) for k in range(config.layers))
        self.readout = nn.Sequential(nn.Linear(config.hidden, config.hidden), nn.SiLU(), nn.Linear(config.hidden, 1))

    def forward(self, species, pos):
        mask = (species > 0).float()
        h = self.embed(species)
        for layer in self.layers:
            h, pos = layer(h, pos, mask)
        pooled = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.readout(pooled).squeeze(-1)


def make_molecules(config):
    species = torch.randint(1, 5, (config.molecules, config.max_atoms))
    count = torch.randint(3, config.max_atoms + 1, (config.molecules, 1))
    species[torch.arange(config.max_atoms)[None] >= count] = 0
    mask = (species > 0).float()[..., None]
    pos = torch.randn(config.molecules, config.max_atoms, 3) * (0.5 + torch.rand(config.molecules, 1, 1)) * mask
    center = pos.sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    radius = (((pos - center) * mask) ** 2).sum((1, 2)) / mask.sum((1, 2))
    return species, pos, radius


def sanitize_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            torch.nan_to_num_(parameter.grad, nan=0.0, posinf=0.0, neginf=0.0)


def run_epoch(model, loader, optimizer, config):
    total = 0.0
    for species, pos, radius in loader:
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(species, pos), radius)
        loss.backward()
        sanitize_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), config.max_norm)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main(config=Config()):
    torch.manual_seed(config.seed)
    dataset = TensorDataset(*make_molecules(config))
    loader = DataLoader(dataset, batch_size=config.batch, shuffle=True)
    model = EGNN(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    loss = 0.0
    for epoch in range(config.epochs):
        loss = run_epoch(model, loader, optimizer, config)
        if epoch % 4 == 3:
            print(f"epoch {epoch + 1:2d}  loss {loss:.4f}")
    return {"loss": loss, "model": model, "before": before}


if __name__ == "__main__":
    main()
