"""Detector-style fine-tuning: first stages and all batch norms of the backbone stay frozen."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    seed: int = 0
    epochs: int = 6
    batch_size: int = 16
    lr: float = 0.02
    frozen_stages: int = 1
    norm_eval: bool = True


def stage(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Backbone(nn.Module):
    def __init__(self, frozen_stages, norm_eval):
        super().__init__()
        self.stages = nn.ModuleList([stage(1, 8), stage(8, 16), stage(16, 16)])
        self.frozen_stages, self.norm_eval = frozen_stages, norm_eval
        self._freeze_stages()

    def _freeze_stages(self):
        for block in self.stages[: self.frozen_stages]:
            block.eval()
            for p in block.parameters():
                p.requires_grad = False

    def train(self, mode=True):
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self

    def forward(self, x):
        for block in self.stages:
            x = block(x)
        return x


class Detector(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.backbone = Backbone(cfg.frozen_stages, cfg.norm_eval)
        self.objectness = nn.Conv2d(16, 1, 1)
        self.box = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        f = self.backbone(x)
        return self.objectness(f).squeeze(1), self.box(f)


def make_images(n, seed):
    g = torch.Generator().manual_seed(seed)
    pos = torch.randint(2, 14, (n, 2), generator=g)
    x = 0.3 * torch.randn(n, 1, 16, 16, generator=g)
    cell = torch.zeros(n, 2, 2)
    for i, (r, c) in enumerate(pos.tolist()):
        x[i, 0, r - 1:r + 2, c - 1:c + 2] += 2
        cell[i, r // 8, c // 8] = 1
    return x, cell, (pos.float() % 8) / 8


def loss_fn(obj, box, cell, offset):
    cls = F.binary_cross_entropy_with_logits(obj, cell)
    picked = (box * cell.unsqueeze(1)).sum((2, 3))
    return cls + F.smooth_l1_loss(torch.sigmoid(picked), offset)


def calibrate(model, x):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.train()
    with torch.no_grad():
        model(x)


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    model = Detector(cfg)
    x, cell, offset = make_images(192, 1)
    vx, vcell, voffset = make_images(96, 2)
    calibrate(model, x)
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=cfg.lr, momentum=0.9)
    for epoch in range(cfg.epochs):
        model.train()
        for idx in torch.randperm(len(x)).split(cfg.batch_size):
            optimizer.zero_grad()
            loss = loss_fn(*model(x[idx]), cell[idx], offset[idx])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            val = loss_fn(*model(vx), vcell, voffset).item()
        if epoch % 2 == 1:
            print(f"epoch {epoch} loss {loss.item():.4f} val {val:.4f}")
    return val


if __name__ == "__main__":
    main()
