"""Siamese tracker training with an actor, a loader with intervals, and statistics per loader."""
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Settings:
    size: int = 10
    batch_size: int = 8
    samples_per_epoch: int = 40
    epochs: int = 3
    lr: float = 3e-3
    print_interval: int = 20
    seed: int = 29


class AverageMeter:
    def __init__(self):
        self.clear()
        self.has_new_data = False

    def clear(self):
        self.val, self.avg, self.sum, self.count, self.history = 0, 0, 0, 0, []

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count
        self.has_new_data = True

    def new_epoch(self):
        self.history.append(float(self.avg) if self.count else None)
        self.val, self.avg, self.sum, self.count = 0, 0, 0, 0


class Tracker(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
        self.box = nn.Linear(width, 2)
        self.score = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, template, search):
        z = self.backbone(template).mean((2, 3), keepdim=True)
        f = self.backbone(search)
        response = self.score((f * z).sum(1, keepdim=True))
        weight = response.flatten(2).softmax(-1)
        pooled = (f.flatten(2) * weight).sum(-1)
        return response, self.box(pooled)


class TrackingActor:
    def __init__(self, net, weights):
        self.net, self.weights = net, weights

    def __call__(self, data):
        response, box = self.net(data["template"], data["search"])
        score_loss = F.cross_entropy(response.flatten(1), data["centre"])
        box_loss = F.smooth_l1_loss(box, data["box"])
        loss = self.weights["score"] * score_loss + self.weights["box"] * box_loss
        hit = (response.flatten(1).argmax(1) == data["centre"]).float().mean()
        stats = {"Loss/total": loss, "Loss/score": score_loss, "Loss/box": box_loss, "Acc/centre": hit}
        return loss, stats


class Loader:
    def __init__(self, name, settings, training, seed):
        self.name, self.settings, self.training = name, settings, training
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        s = self.settings
        for _ in range(s.samples_per_epoch if self.training else 4):
            x, y = torch.randint(1, s.size - 1, (2, s.batch_size), generator=self.g)
            search = 0.3 * torch.randn(s.batch_size, 1, s.size, s.size, generator=self.g)
            for i in range(s.batch_size):
                search[i, 0, y[i] - 1:y[i] + 2, x[i] - 1:x[i] + 2] += 1.5
            template = 1.5 + 0.3 * torch.randn(s.batch_size, 1, 3, 3, generator=self.g)
            yield {"template": template, "search": search, "centre": y * s.size + x,
                   "box": torch.stack([x, y], 1).float() / s.size}


class LTRTrainer:
    def __init__(self, actor, loaders, optimizer, settings):
        self.actor, self.loaders, self.optimizer, self.settings = actor, loaders, optimizer, settings
        self.stats = OrderedDict((loader.name, OrderedDict()) for loader in loaders)

    def cycle_dataset(self, loader):
        self.actor.net.train(loader.training)
        torch.set_grad_enabled(loader.training)
        for i, data in enumerate(loader, 1):
            loss, stats = self.actor(data)
            if loader.training:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self._update_stats(stats, len(data["box"]), loader)
            if loader.training and i % self.settings.print_interval == 0:
                print(f"[{loader.name}] {i} " + " ".join(f"{k} {float(m.avg):.3f}" for k, m in self.stats[loader.name].items()))
        torch.set_grad_enabled(True)

    def _update_stats(self, new_stats, batch_size, loader):
        for name, val in new_stats.items():
            meter = self.stats[loader.name].setdefault(name, AverageMeter())
            meter.update(val.item(), batch_size)

    def train(self):
        for epoch in range(self.settings.epochs):
            for meters in self.stats.values():
                for meter in meters.values():
                    meter.new_epoch()
            for loader in self.loaders:
                self.cycle_dataset(loader)


def main():
    settings = Settings()
    torch.manual_seed(settings.seed)
    net = Tracker()
    loaders = [Loader("train", settings, True, 1), Loader("val", settings, False, 2)]
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.lr)
    trainer = LTRTrainer(TrackingActor(net, {"score": 1.0, "box": 5.0}), loaders, optimizer, settings)
    trainer.train()
    return {"val_loss": float(trainer.stats["val"]["Loss/total"].avg), "trainer": trainer}


if __name__ == "__main__":
    main()
