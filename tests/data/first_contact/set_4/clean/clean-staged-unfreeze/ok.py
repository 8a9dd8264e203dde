"""Transfer learning: head first, then the backbone is unfrozen and joins the optimizer at a lower rate."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    classes: int = 4
    head_epochs: int = 3
    full_epochs: int = 4
    batch: int = 32
    lr: float = 1e-2
    seed: int = 0


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                 nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                                 nn.AdaptiveAvgPool2d(2), nn.Flatten())

    def forward(self, x):
        return self.net(x)


class Classifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, cfg.classes))
        self.frozen = False

    def freeze(self):
        self.frozen = True
        self.backbone.requires_grad_(False)
        self.train(self.training)

    def unfreeze(self):
        self.frozen = False
        self.backbone.requires_grad_(True)
        self.train(self.training)

    def train(self, mode=True):
        super().train(mode)
        for m in self.backbone.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()
        return self

    def forward(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            feats = self.backbone(x)
        return self.head(feats)


def data(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(cfg.classes, (n,), generator=g)
    x = torch.randn(n, 1, 8, 8, generator=g)
    x[:, 0] += torch.linspace(-1, 1, 8) * (y.view(-1, 1, 1) - 1.5)
    return x, y


def calibrate(backbone, x):
    """The pretrained statistics are those of this pass; they stay as they are afterwards."""
    backbone.train()
    with torch.no_grad():
        for _ in range(20):
            backbone(x)
    backbone.eval()


def run_epoch(model, optimizer, x, y, cfg):
    model.train()
    total = 0.0
    for idx in torch.randperm(len(x)).split(cfg.batch):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(idx)
    return total / len(x)


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    x, y = data(cfg, 320, 1)
    xv, yv = data(cfg, 160, 2)
    model = Classifier(cfg)
    calibrate(model.backbone, x)
    model.freeze()
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for epoch in range(cfg.head_epochs + cfg.full_epochs):
        if epoch == cfg.head_epochs:
            model.unfreeze()
            optimizer.add_param_group({"params": list(model.backbone.parameters()), "lr": cfg.lr / 10})
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        loss = run_epoch(model, optimizer, x, y, cfg)
        scheduler.step()
        print(f"epoch {epoch} loss {loss:.4f} acc {accuracy(model, xv, yv):.3f}")
    return {"acc": accuracy(model, xv, yv)}


if __name__ == "__main__":
    main()
