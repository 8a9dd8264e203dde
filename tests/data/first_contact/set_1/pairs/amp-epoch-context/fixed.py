"""Small image classifier with mixed precision, cosine schedule and clipping."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    seed: int = 0
    epochs: int = 5
    batch_size: int = 32
    lr: float = 0.003
    momentum: float = 0.9
    weight_decay: float = 1e-4
    max_norm: float = 5.0
    amp: bool = True
    num_classes: int = 4


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)


class SmallNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.stem = ConvBlock(3, 16)
        self.body = ConvBlock(16, 32)
        self.head = nn.Linear(32 * 4 * 4, num_classes)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).flatten(1))


def make_loader(n, cfg, seed, shuffle):
    g = torch.Generator().manual_seed(seed)
    protos = torch.randn(cfg.num_classes, 3, 16, 16, generator=torch.Generator().manual_seed(7))
    y = torch.randint(cfg.num_classes, (n,), generator=g)
    x = protos[y] * 0.45 + torch.randn(n, 3, 16, 16, generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=cfg.batch_size, shuffle=shuffle, drop_last=shuffle)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = SmallNet(cfg.num_classes)
        self.train_loader = make_loader(320, cfg, 1, True)
        self.val_loader = make_loader(128, cfg, 2, False)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay
        )
        total = cfg.epochs * len(self.train_loader)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / total))
        )
        self.history = []

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cfg.amp)

    def train_epoch(self):
        self.model.train()
        losses = []
        for x, y in self.train_loader:
            with self.autocast():
                logits = self.model(x)
                loss = F.cross_entropy(logits.float(), y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_norm)
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        total, correct, count = 0.0, 0, 0
        with self.autocast():
            for x, y in self.val_loader:
                logits = self.model(x).float()
                total += F.cross_entropy(logits, y, reduction="sum").item()
                correct += (logits.argmax(1) == y).sum().item()
                count += len(y)
        return total / count, correct / count

    def fit(self):
        for epoch in range(self.cfg.epochs):
            losses = self.train_epoch()
            val_loss, val_acc = self.evaluate()
            self.history.append((losses, val_loss, val_acc))
            print(f"epoch {epoch} train {sum(losses) / len(losses):.4f} val {val_loss:.4f} acc {val_acc:.3f}")
        return self.history


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    trainer.fit()
    return trainer


if __name__ == "__main__":
    main()
