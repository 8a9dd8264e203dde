"""Regression of a simulated field; the run is stopped half way and picked up from its checkpoint."""
import math
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class RunConfig:
    max_epoch: int = 12
    stop_after: int = 8
    warmup_epochs: int = 2
    steps_per_epoch: int = 16
    lr: float = 2e-2
    weight_decay: float = 1e-4
    seed: int = 4


class FieldNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


def warmup_cosine(cfg):
    def factor(epoch):
        if epoch < cfg.warmup_epochs:
            return (epoch + 1) / cfg.warmup_epochs
        t = (epoch - cfg.warmup_epochs) / max(1, cfg.max_epoch - cfg.warmup_epochs)
        return 0.5 * (1 + math.cos(math.pi * t))
    return factor


def field(xy):
    return torch.sin(1.5 * xy[:, :1]) * torch.cos(xy[:, 1:]) + 0.3 * xy[:, :1] ** 2


class Trainer:
    def __init__(self, cfg, folder, checkpoint_path=None):
        self.cfg, self.folder = cfg, folder
        torch.manual_seed(cfg.seed)
        self.model = FieldNet()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warmup_cosine(cfg))
        self.starting_epoch, self.best_val_loss = 0, float("inf")
        if checkpoint_path is not None:
            self.load_checkpoint(checkpoint_path)

    def save_model(self, epoch, val_loss, path):
        torch.save({
            "epoch": epoch,
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "lr_scheduler_state_dict": self.lr_scheduler.state_dict(),
            "validation_loss": val_loss,
            "best_validation_loss": self.best_val_loss,
        }, path)

    def load_checkpoint(self, path):
        checkpoint = torch.load(path)
        self.model.load_state_dict(checkpoint["model_state_dict"])
        self.optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        self.lr_scheduler.load_state_dict(checkpoint["lr_scheduler_state_dict"])
        self.best_val_loss = checkpoint["best_validation_loss"]
        self.starting_epoch = checkpoint["epoch"] + 1

    def batches(self, epoch):
        gen = torch.Generator().manual_seed(1000 + epoch)
        for _ in range(self.cfg.steps_per_epoch):
            xy = torch.rand(64, 2, generator=gen) * 4 - 2
            yield xy, field(xy) + 0.05 * torch.randn(64, 1, generator=gen)

    def train_one_epoch(self, epoch):
        self.model.train()
        total = 0.0
        for xy, target in self.batches(epoch):
            loss = F.mse_loss(self.model(xy), target)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / self.cfg.steps_per_epoch

    @torch.no_grad()
    def validation_loop(self):
        self.model.eval()
        xy = torch.rand(512, 2, generator=torch.Generator().manual_seed(7)) * 4 - 2
        return F.mse_loss(self.model(xy), field(xy)).item()

    def train(self, last_epoch):
        lrs = []
        for epoch in range(self.starting_epoch, last_epoch):
            lrs.append(self.optimizer.param_groups[0]["lr"])
            train_loss = self.train_one_epoch(epoch)
            self.lr_scheduler.step()
            val_loss = self.validation_loop()
            self.best_val_loss = min(val_loss, self.best_val_loss)
            self.save_model(epoch, val_loss, os.path.join(self.folder, "recent.pt"))
            print(f"epoch {epoch} lr {lrs[-1]:.5f} train {train_loss:.4f} val {val_loss:.4f}")
        return val_loss, lrs


def main():
    cfg = RunConfig()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(cfg, folder).train(cfg.stop_after)
        resumed = Trainer(cfg, folder, checkpoint_path=os.path.join(folder, "recent.pt"))
        val_loss, lrs = resumed.train(cfg.max_epoch)
    return {"val": val_loss, "resumed_lrs": [round(v, 5) for v in lrs]}


if __name__ == "__main__":
    main()
