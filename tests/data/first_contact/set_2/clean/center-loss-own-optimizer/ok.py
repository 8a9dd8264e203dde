"""Face-style embedding: softmax plus center loss, whose centers have an optimizer of their own."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    classes: int = 5
    dim: int = 8
    weight: float = 0.05
    lr_model: float = 5e-3
    lr_center: float = 0.5
    freeze_stem_epochs: int = 2
    epochs: int = 5
    batch_size: int = 16
    seed: int = 41


class CenterLoss(nn.Module):
    def __init__(self, classes, dim):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, dim))

    def forward(self, embedding, y):
        return (embedding - self.centers[y]).pow(2).sum(1).clamp(1e-12, 1e12).mean()


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.embed = nn.Linear(32, cfg.dim)
        self.classifier = nn.Linear(cfg.dim, cfg.classes)
        self.stem_frozen = False

    def freeze_stem(self, frozen):
        self.stem_frozen = frozen
        self.stem.requires_grad_(not frozen)
        return self.train(self.training)

    def train(self, mode=True):
        super().train(mode)
        if self.stem_frozen:
            self.stem.eval()
        return self

    def forward(self, x):
        e = self.embed(self.stem(x))
        return e, self.classifier(e)


def make_data(n, seed, cfg):
    g = torch.Generator().manual_seed(seed)
    means = 1.3 * torch.randn(cfg.classes, 16, generator=torch.Generator().manual_seed(0))
    y = torch.randint(cfg.classes, (n,), generator=g)
    return TensorDataset(means[y] + torch.randn(n, 16, generator=g), y)


@torch.no_grad()
def accuracy(net, data):
    net.eval()
    x, y = data.tensors
    hits = (net(x)[1].argmax(1) == y).float().mean().item()
    net.train()
    return hits


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    net, center_loss = Net(cfg), CenterLoss(cfg.classes, cfg.dim)
    opt_model = torch.optim.Adam(net.parameters(), lr=cfg.lr_model)
    opt_center = torch.optim.SGD(center_loss.parameters(), lr=cfg.lr_center)
    loader = DataLoader(make_data(320, 1, cfg), cfg.batch_size, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(cfg.seed))
    valid = make_data(200, 2, cfg)
    net.freeze_stem(True)
    for epoch in range(cfg.epochs):
        if epoch == cfg.freeze_stem_epochs:
            net.freeze_stem(False)
        net.train()
        for x, y in loader:
            embedding, logits = net(x)
            center = center_loss(embedding, y)
            loss = F.cross_entropy(logits, y) + cfg.weight * center
            opt_model.zero_grad()
            opt_center.zero_grad()
            loss.backward()
            opt_model.step()
            for p in center_loss.parameters():
                p.grad.mul_(1.0 / cfg.weight)
            opt_center.step()
        print(f"epoch {epoch} loss {loss.item():.4f} center {center.item():.4f} acc {accuracy(net, valid):.3f}")
    return {"accuracy": accuracy(net, valid)}


if __name__ == "__main__":
    main()
