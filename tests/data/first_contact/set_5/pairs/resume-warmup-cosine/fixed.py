"""A point-cloud classifier that is trained in two sittings, with warm-up and cosine decay per epoch."""
import math
import os
import tempfile

import torch
import torch.nn as nn


class PointNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 48), nn.ReLU())
        self.head = nn.Linear(48, classes)

    def forward(self, points):
        return self.head(self.local(points).amax(dim=1))


def lr_factor(total, warmup):
    def factor(epoch):
        if epoch < warmup:
            return (epoch + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (total - warmup)))
    return factor


class Checkpoint:
    def __init__(self, folder):
        self.path = os.path.join(folder, "latest.pt")

    def save(self, trainer):
        torch.save({
            "epoch": trainer.epoch,
            "weights": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.scheduler.state_dict(),
        }, self.path)

    def load(self):
        return torch.load(self.path) if os.path.exists(self.path) else None


class Trainer:
    def __init__(self, folder, epochs=12, warmup=2, lr=0.02):
        self.epochs, self.warmup, self.lr = epochs, warmup, lr
        self.checkpoint = Checkpoint(folder)
        self.model = PointNet()
        self.epoch = 0
        self.rates = []
        self._setup()

    def _setup(self):
        stored = self.checkpoint.load()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.9)
        if stored is not None:
            self.model.load_state_dict(stored["weights"])
            self.epoch = stored["epoch"]
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lr_factor(self.epochs, self.warmup))
        if stored is not None:
            self.scheduler.load_state_dict(stored["scheduler"])
            self.optimizer.load_state_dict(stored["optimizer"])

    def train(self, data, until):
        clouds, labels = data
        while self.epoch < until:
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            for part in torch.randperm(len(clouds)).split(32):
                loss = nn.functional.cross_entropy(self.model(clouds[part]), labels[part])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.scheduler.step()
            self.epoch += 1
            self.checkpoint.save(self)
            print(f"epoch {self.epoch:2d} lr {self.rates[-1]:.5f} loss {loss.item():.4f}")


def clouds_of_boxes(n=128, points=20, classes=4):
    labels = torch.arange(n) % classes
    scale = 0.5 + 0.5 * labels.float()
    return torch.rand(n, points, 3) * scale.view(-1, 1, 1), labels


def main():
    torch.manual_seed(2)
    data = clouds_of_boxes()
    with tempfile.TemporaryDirectory() as folder:
        first = Trainer(folder)
        first.train(data, until=9)
        second = Trainer(folder)
        second.train(data, until=12)
    return first.rates + second.rates


if __name__ == "__main__":
    main()
