"""First-order DARTS search over a tiny cell."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset


@dataclass
class SearchConfig:
    features: int = 8
    width: int = 16
    nodes: int = 3
    classes: int = 3
    samples: int = 256
    batch: int = 32
    epochs: int = 12
    weight_lr: float = 0.1
    weight_decay: float = 3e-3
    alpha_lr: float = 1e-2
    alpha_decay: float = 1e-3
    grad_clip: float = 5.0
    seed: int = 12


class Zero(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def candidates(width):
    return nn.ModuleList([
        Zero(),
        nn.Identity(),
        nn.Sequential(nn.Linear(width, width), nn.ReLU()),
        nn.Sequential(nn.Linear(width, width), nn.Tanh()),
    ])


class SearchNetwork(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.nodes = cfg.nodes
        self.stem = nn.Linear(cfg.features, cfg.width)
        edges = sum(range(1, cfg.nodes + 1))
        self.edges = nn.ModuleList(candidates(cfg.width) for _ in range(edges))
        self.head = nn.Linear(cfg.width, cfg.classes)
        self.alphas = nn.Parameter(1e-3 * torch.randn(edges, 4))

    def arch_parameters(self):
        return [self.alphas]

    def forward(self, x):
        weights = self.alphas.softmax(dim=-1)
        states, edge = [self.stem(x)], 0
        for _ in range(self.nodes):
            total = 0
            for state in states:
                total = total + sum(w * op(state) for w, op in zip(weights[edge], self.edges[edge]))
                edge += 1
            states.append(total)
        return self.head(states[-1])

    def genotype(self):
        return self.alphas.argmax(dim=-1).tolist()


class Architect:
    def __init__(self, model, cfg):
        self.model = model
        self.optimizer = torch.optim.Adam(model.arch_parameters(), lr=cfg.alpha_lr, betas=(0.5, 0.999),
                                          weight_decay=cfg.alpha_decay)

    def step(self, x, y):
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def make_loaders(cfg):
    x = torch.randn(cfg.samples, cfg.features)
    y = (x[:, 0] * x[:, 1] > 0.3).long() + (x[:, 2].tanh() > 0.2).long()
    dataset = TensorDataset(x, y)
    half = cfg.samples // 2
    return (DataLoader(Subset(dataset, range(half)), cfg.batch, shuffle=True),
            DataLoader(Subset(dataset, range(half, cfg.samples)), cfg.batch, shuffle=True))


def main(cfg=SearchConfig()):
    torch.manual_seed(cfg.seed)
    train_loader, valid_loader = make_loaders(cfg)
    model = SearchNetwork(cfg)
    optimizer = torch.optim.SGD([p for n, p in model.named_parameters() if n != "alphas"], lr=cfg.weight_lr, momentum=0.9, weight_decay=cfg.weight_decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.epochs, eta_min=1e-3)
    architect = Architect(model, cfg)
    for epoch in range(cfg.epochs):
        model.train()
        for (x, y), (x_valid, y_valid) in zip(train_loader, valid_loader):
            architect.step(x_valid, y_valid)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
            optimizer.step()
        scheduler.step()
        if epoch % 4 == 3:
            print(f"epoch {epoch + 1:2d}  train loss {loss.item():.4f}  genotype {model.genotype()}")
    return {"model": model, "optimizer": optimizer, "genotype": model.genotype(), "loss": loss.item()}


if __name__ == "__main__":
    main()
