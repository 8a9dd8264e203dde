"""Transfer learning in two stages: the head on a frozen backbone, then everything with a smaller rate."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    classes: int = 4
    batch: int = 16
    pretrain_steps: int = 25
    head_epochs: int = 2
    full_epochs: int = 2
    iters: int = 12
    head_lr: float = 1e-2
    backbone_lr: float = 1e-3
    seed: int = 5


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8 * 16, classes))
        self.backbone_frozen = False

    def freeze_backbone(self, frozen):
        self.backbone_frozen = frozen
        for p in self.backbone.parameters():
            p.requires_grad_(not frozen)
        return self.train(self.training)

    def train(self, mode=True):
        super().train(mode)
        if self.backbone_frozen:
            self.backbone.eval()
        return self

    def forward(self, x):
        if self.backbone_frozen:
            with torch.no_grad():
                features = self.backbone(x)
        else:
            features = self.backbone(x)
        return self.head(features)


class Data:
    def __init__(self, cfg, seed):
        self.cfg = cfg
        self.patterns = torch.randn(cfg.classes, 1, 8, 8, generator=torch.Generator().manual_seed(seed))

    def batches(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        for _ in range(n):
            y = torch.randint(0, self.cfg.classes, (self.cfg.batch,), generator=gen)
            yield self.patterns[y] + torch.randn(self.cfg.batch, 1, 8, 8, generator=gen), y


def run_epoch(model, batches, optimizer):
    model.train()
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    hits = [(model(x).argmax(1) == y).float().mean() for x, y in data.batches(5, 777)]
    return torch.stack(hits).mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    source, target = Data(cfg, 1), Data(cfg, 2)
    model = Classifier(cfg.classes)
    run_epoch(model, source.batches(cfg.pretrain_steps, 3), torch.optim.Adam(model.parameters(), lr=cfg.head_lr))

    model.head[1].reset_parameters()
    model.zero_grad(set_to_none=True)
    model.freeze_backbone(True)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=cfg.head_lr)
    for epoch in range(cfg.head_epochs):
        loss = run_epoch(model, target.batches(cfg.iters, 10 + epoch), optimizer)
        print(f"head {epoch} loss {loss:.4f} acc {accuracy(model, target):.3f}")

    model.freeze_backbone(False)
    optimizer = torch.optim.AdamW([
        {"params": model.backbone.parameters(), "lr": cfg.backbone_lr},
        {"params": model.head.parameters(), "lr": cfg.head_lr / 5},
    ])
    for epoch in range(cfg.full_epochs):
        loss = run_epoch(model, target.batches(cfg.iters, 20 + epoch), optimizer)
        print(f"full {epoch} loss {loss:.4f} acc {accuracy(model, target):.3f}")
    return accuracy(model, target)


if __name__ == "__main__":
    main()
