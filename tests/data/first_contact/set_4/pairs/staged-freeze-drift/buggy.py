"""Two-stage training: everything for a while, then the feature extractor is frozen and only the heads go on."""
import copy
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    classes: int = 6
    width: int = 12
    stage_epochs: tuple = (4, 4)
    freeze_in_stage_two: list = field(default_factory=lambda: ["stem", "body"])
    batch: int = 32
    lr: float = 3e-3
    weight_decay: float = 1e-2
    seed: int = 0


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        w = cfg.width
        self.stem = nn.Sequential(nn.Conv2d(1, w, 3, padding=1), nn.GroupNorm(3, w), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(w, 2 * w, 3, padding=1), nn.GroupNorm(4, 2 * w), nn.ReLU(),
                                  nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.coarse = nn.Linear(8 * w, 2)
        self.fine = nn.Linear(8 * w, cfg.classes)

    def forward(self, x):
        h = self.body(self.stem(x))
        return self.coarse(h), self.fine(h)


def make_data(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(cfg.classes, 1, 12, 12, generator=torch.Generator().manual_seed(77))
    y = torch.randint(cfg.classes, (n,), generator=g)
    return TensorDataset(prototypes[y] + 1.5 * torch.randn(n, 1, 12, 12, generator=g), y)


def set_freeze_by_layer_names(model, names, freeze=True):
    for name, child in model.named_children():
        if name not in names:
            continue
        for param in child.parameters():
            param.requires_grad = not freeze


class Meter:
    def __init__(self):
        self.total, self.n = 0.0, 0

    def update(self, value, n):
        self.total += float(value) * n
        self.n += n

    @property
    def avg(self):
        return self.total / max(self.n, 1)


class Trainer:
    def __init__(self, model, cfg, train_set, val_set):
        self.model, self.cfg = model, cfg
        self.loader = DataLoader(train_set, cfg.batch, shuffle=True)
        self.val_loader = DataLoader(val_set, 128)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.best, self.best_state = 0.0, None

    def loss(self, x, y):
        coarse, fine = self.model(x)
        return F.cross_entropy(fine, y) + 0.5 * F.cross_entropy(coarse, y % 2)

    def train_epoch(self):
        self.model.train()
        meter = Meter()
        for x, y in self.loader:
            loss = self.loss(x, y)
            self.optimizer.zero_grad(set_to_none=False)
            loss.backward()
            self.optimizer.step()
            meter.update(loss.item(), len(y))
        return meter.avg

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = Meter()
        for x, y in self.val_loader:
            hits.update((self.model(x)[1].argmax(1) == y).float().mean(), len(y))
        return hits.avg

    def fit(self):
        for stage, epochs in enumerate(self.cfg.stage_epochs):
            if stage == 1:
                set_freeze_by_layer_names(self.model, self.cfg.freeze_in_stage_two)
            for epoch in range(epochs):
                loss, acc = self.train_epoch(), self.validate()
                if acc >= self.best:
                    self.best, self.best_state = acc, copy.deepcopy(self.model.state_dict())
            print(f"stage {stage} loss {loss:.4f} acc {acc:.3f}")


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(Net(cfg), cfg, make_data(cfg, 384, 1), make_data(cfg, 256, 2))
    trainer.fit()
    return {"model": trainer.model, "best": trainer.best}


if __name__ == "__main__":
    main()
