"""Semi-supervised segmentation: consistency between a weak and a strong view of unlabelled images."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    size: int = 12
    labelled: int = 6
    unlabelled: int = 96
    batch_l: int = 4
    batch_u: int = 12
    steps: int = 220
    ramp_up: int = 60
    weight: float = 20.0
    lr: float = 5e-3
    seed: int = 2


def images(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx, cy = torch.randint(3, size - 3, (2, n, 1, 1), generator=g)
    mask = ((xx - cx).abs().maximum((yy - cy).abs()) <= 2).long()
    x = 0.9 * mask.float() + 0.5 * torch.randn(n, size, size, generator=g)
    return x.unsqueeze(1), mask


class UNetSmall(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Conv2d(1, width, 3, padding=1)
        self.mid = nn.Conv2d(width, width, 3, padding=1)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        a = torch.relu(self.down(x))
        b = torch.relu(self.mid(F.max_pool2d(a, 2)))
        b = F.interpolate(b, scale_factor=2)
        return self.out(torch.relu(self.up(torch.cat([a, b], 1))))


class Augmenter:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def weak(self, x):
        return x + 0.05 * torch.randn(x.shape, generator=self.g)

    def strong(self, x):
        drop = (torch.rand(x.shape, generator=self.g) > 0.3).float()
        return (x + 0.5 * torch.randn(x.shape, generator=self.g)) * drop


class ConsistencyTrainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg, self.model = cfg, UNetSmall()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.augment = Augmenter(cfg.seed + 1)
        self.g = torch.Generator().manual_seed(cfg.seed + 2)
        self.xl, self.yl = images(cfg.labelled, cfg.size, 10)
        self.xu, _ = images(cfg.unlabelled, cfg.size, 11)

    def consistency(self, x):
        target = F.softmax(self.model(self.augment.weak(x)), dim=1)
        prediction = F.softmax(self.model(self.augment.strong(x)), dim=1)
        return F.mse_loss(prediction, target)

    def step(self, i):
        li = torch.randint(self.cfg.labelled, (self.cfg.batch_l,), generator=self.g)
        ui = torch.randint(self.cfg.unlabelled, (self.cfg.batch_u,), generator=self.g)
        supervised = F.cross_entropy(self.model(self.augment.weak(self.xl[li])), self.yl[li])
        unsupervised = self.consistency(self.xu[ui])
        ramp = min(1.0, i / self.cfg.ramp_up)
        loss = supervised + self.cfg.weight * ramp * unsupervised
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return supervised.item(), unsupervised.item()

    @torch.no_grad()
    def iou(self):
        self.model.eval()
        x, y = images(64, self.cfg.size, 12)
        prediction = self.model(x).argmax(1)
        self.model.train()
        return ((prediction & y).sum() / (prediction | y).sum().clamp(min=1)).item()


def main():
    cfg = Config()
    trainer = ConsistencyTrainer(cfg)
    for i in range(cfg.steps):
        supervised, unsupervised = trainer.step(i)
        if i % 55 == 54:
            print(f"step {i + 1} sup {supervised:.4f} cons {unsupervised:.5f} IoU {trainer.iou():.3f}")
    return {"iou": trainer.iou(), "supervised": supervised, "consistency": unsupervised, "trainer": trainer}


if __name__ == "__main__":
    main()
