"""Train, checkpoint, resume: warm-up followed by cosine annealing."""
import io

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler


class GradualWarmupScheduler(LRScheduler):
    """Ramp the learning rate up to its base value, then hand over."""

    def __init__(self, optimizer, total_epoch, after_scheduler=None):
        self.total_epoch = total_epoch
        self.after_scheduler = after_scheduler
        self.finished = False
        super().__init__(optimizer)

    def get_lr(self):
        if self.last_epoch > self.total_epoch and self.after_scheduler:
            return self.after_scheduler.get_last_lr()
        return [base * min(1.0, (self.last_epoch + 1) / (self.total_epoch + 1))
                for base in self.base_lrs]

    def step(self, epoch=None):
        if self.last_epoch >= self.total_epoch and self.after_scheduler:
            self.finished = True
            self.last_epoch += 1
            self.after_scheduler.step()
            self._last_lr = self.after_scheduler.get_last_lr()
        else:
            super().step(epoch)

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        if self.after_scheduler is not None:
            self.after_scheduler.optimizer = self.optimizer


class Net(nn.Module):
    def __init__(self, dim=12, width=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(dim, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def build(cfg):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=0.9)
    cosine = CosineAnnealingLR(optimizer, T_max=cfg["epochs"] - cfg["warmup"], eta_min=1e-4)
    scheduler = GradualWarmupScheduler(optimizer, cfg["warmup"], cosine)
    return model, optimizer, scheduler


def run_epochs(model, optimizer, scheduler, data, first, last, log):
    x, y = data
    for epoch in range(first, last):
        model.train()
        order = torch.randperm(len(x))
        total = 0.0
        for i in range(0, len(x), 64):
            idx = order[i:i + 64]
            loss = F.mse_loss(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(idx)
        log.append((epoch, optimizer.param_groups[0]["lr"], total / len(x)))
        scheduler.step()
    return log


def save_checkpoint(model, optimizer, scheduler, epoch):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(), "epoch": epoch}, buffer)
    buffer.seek(0)
    return buffer


def resume(cfg, buffer):
    ckpt = torch.load(buffer, weights_only=False)
    model, optimizer, scheduler = build(cfg)
    model.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["optimizer"])
    scheduler.load_state_dict(ckpt["scheduler"])
    return model, optimizer, scheduler, ckpt["epoch"]


def main():
    torch.manual_seed(0)
    cfg = {"lr": 0.1, "epochs": 24, "warmup": 4}
    x = torch.randn(512, 12)
    y = torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] + 0.3 * torch.randn(512)
    log = []
    model, optimizer, scheduler = build(cfg)
    run_epochs(model, optimizer, scheduler, (x, y), 0, 10, log)
    ckpt = save_checkpoint(model, optimizer, scheduler, 10)

    model, optimizer, scheduler, start = resume(cfg, ckpt)
    run_epochs(model, optimizer, scheduler, (x, y), start, cfg["epochs"], log)
    for epoch, lr, loss in log[::3] + log[-1:]:
        print(f"epoch {epoch:2d}  lr {lr:.4f}  loss {loss:.4f}")
    return log


if __name__ == "__main__":
    main()
