"""Semi-supervised training with a mean teacher."""
import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    channels: int = 6
    length: int = 16
    classes: int = 4
    labeled: int = 48
    unlabeled: int = 400
    labeled_batch: int = 16
    unlabeled_batch: int = 48
    epochs: int = 6
    lr: float = 0.05
    ema_decay: float = 0.98
    consistency: float = 2.0
    rampup_epochs: int = 3
    seed: int = 8


class ConvNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(cfg.channels, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 24, 3, padding=1), nn.BatchNorm1d(24), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )
        self.head = nn.Linear(24, cfg.classes)

    def forward(self, x):
        return self.head(self.features(x))


class Signals:
    def __init__(self, cfg):
        self.cfg = cfg
        self.patterns = 2.0 * torch.randn(cfg.classes, cfg.channels, cfg.length)
        self.gain = 1.0 + 4.0 * torch.rand(1, cfg.channels, 1)
        self.offset = 5.0 * torch.randn(1, cfg.channels, 1)
        self.lx, self.ly = self.sample(cfg.labeled)
        self.ux, _ = self.sample(cfg.unlabeled)
        self.tx, self.ty = self.sample(400)

    def sample(self, n):
        y = torch.randint(self.cfg.classes, (n,))
        x = self.patterns[y] + 2.5 * torch.randn(n, self.cfg.channels, self.cfg.length)
        return x * self.gain + self.offset, y

    def loader(self):
        order = torch.randperm(len(self.ux))
        for start in range(0, len(order) - self.cfg.unlabeled_batch + 1, self.cfg.unlabeled_batch):
            pick = torch.randint(len(self.lx), (self.cfg.labeled_batch,))
            yield self.lx[pick], self.ly[pick], self.ux[order[start:start + self.cfg.unlabeled_batch]]


def create_ema_model(model):
    ema_model = copy.deepcopy(model)
    for param in ema_model.parameters():
        param.detach_()
    return ema_model.eval()


@torch.no_grad()
def update_ema_variables(model, ema_model, alpha, global_step):
    alpha = min(1 - 1 / (global_step + 1), alpha)
    for ema_param, param in zip(ema_model.parameters(), model.parameters()):
        ema_param.mul_(alpha).add_(param, alpha=1 - alpha)
    for ema_buffer, buffer in zip(ema_model.buffers(), model.buffers()):
        ema_buffer.copy_(buffer)


def augment(x):
    x = x * (1 + 0.1 * torch.randn(len(x), 1, 1))
    return x.roll(int(torch.randint(-1, 2, ())), dims=2)


class Trainer:
    def __init__(self, cfg, data):
        self.cfg, self.data = cfg, data
        self.model = ConvNet(cfg)
        self.ema_model = create_ema_model(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), cfg.lr, momentum=0.9, nesterov=True)
        self.global_step = 0

    def train_epoch(self, epoch):
        self.model.train()
        weight = self.cfg.consistency * min(1.0, epoch / self.cfg.rampup_epochs)
        total = 0.0
        for lx, ly, ux in self.data.loader():
            with torch.no_grad():
                target = F.softmax(self.ema_model(augment(ux)), dim=1)
            logits = self.model(torch.cat([augment(lx), augment(ux)]))
            class_loss = F.cross_entropy(logits[:len(lx)], ly)
            consistency = (F.softmax(logits[len(lx):], dim=1) - target).pow(2).sum(1).mean()
            loss = class_loss + weight * consistency
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.global_step += 1
            update_ema_variables(self.model, self.ema_model, self.cfg.ema_decay, self.global_step)
            total += loss.item()
        return total

    @torch.no_grad()
    def accuracy(self, model):
        training = model.training
        model.eval()
        correct = (model(self.data.tx).argmax(1) == self.data.ty).float().mean().item()
        model.train(training)
        return correct


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg, Signals(cfg))
    for epoch in range(cfg.epochs):
        loss = trainer.train_epoch(epoch)
        print(f"epoch {epoch} loss {loss:.3f} student {trainer.accuracy(trainer.model):.3f} "
              f"teacher {trainer.accuracy(trainer.ema_model):.3f}")
    return {"student": trainer.accuracy(trainer.model), "teacher": trainer.accuracy(trainer.ema_model)}


if __name__ == "__main__":
    main()
