"""Single-shot detector: GIoU on decoded boxes, hard negative mining, warmup."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    grid: int = 4
    batch: int = 16
    steps: int = 120
    lr: float = 5e-3
    neg_ratio: int = 3
    seed: int = 0


def make_priors(grid):
    c = (torch.arange(grid) + 0.5) / grid
    yy, xx = torch.meshgrid(c, c, indexing="ij")
    size = torch.full((grid * grid,), 1.5 / grid)
    return torch.stack([xx.flatten(), yy.flatten(), size, size], 1)


def decode(loc, priors):
    boxes = torch.cat([priors[:, :2] + 0.1 * loc[..., :2] * priors[:, 2:],
                       priors[:, 2:] * torch.exp(0.2 * loc[..., 2:].clamp(max=5))], -1)
    boxes[..., :2] -= boxes[..., 2:] / 2
    boxes[..., 2:] += boxes[..., :2]
    return boxes


def giou(a, b):
    lt, rb = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area = lambda t: (t[..., 2:] - t[..., :2]).prod(-1)
    union = area(a) + area(b) - inter
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    return inter / union - (hull - union) / hull


class Detector(nn.Module):
    def __init__(self, grid):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU())
        self.loc, self.conf = nn.Conv2d(24, 4, 1), nn.Conv2d(24, 1, 1)
        self.register_buffer("priors", make_priors(grid))

    def forward(self, x):
        f = self.body(x)
        return self.loc(f).flatten(2).transpose(1, 2), self.conf(f).flatten(1)


@torch.no_grad()
def match(priors, target):
    corners = torch.cat([priors[:, :2] - priors[:, 2:] / 2, priors[:, :2] + priors[:, 2:] / 2], 1)
    overlap = giou(corners[None], target[:, None])
    positive = overlap > 0.3
    positive[torch.arange(len(target)), overlap.argmax(1)] = True
    return positive


def criterion(loc, conf, priors, target, cfg):
    positive = match(priors, target)
    boxes = decode(loc, priors)
    box_loss = (1 - giou(boxes[positive], target[:, None].expand_as(boxes)[positive])).mean()
    ce = F.binary_cross_entropy_with_logits(conf, positive.float(), reduction="none")
    mined = ce.detach().clone()
    mined[positive] = -1
    rank = mined.argsort(1, descending=True).argsort(1)
    negative = rank < cfg.neg_ratio * positive.sum(1, keepdim=True)
    return box_loss + ce[positive | negative].mean()


def scenes(cfg, g):
    n = cfg.grid * 4
    image = 0.2 * torch.randn(cfg.batch, 1, n, n, generator=g)
    corner = torch.randint(1, n - 7, (cfg.batch, 2), generator=g)
    size = torch.randint(4, 7, (cfg.batch, 2), generator=g)
    for i in range(cfg.batch):
        (x, y), (w, h) = corner[i].tolist(), size[i].tolist()
        image[i, 0, y:y + h, x:x + w] += 1
    return image, torch.cat([corner, corner + size], 1) / n


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    net = Detector(cfg.grid)
    optimizer = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        for group in optimizer.param_groups:
            group["lr"] = cfg.lr * min(1.0, (step + 1) / 20)
        image, target = scenes(cfg, g)
        loc, conf = net(image)
        loss = criterion(loc, conf, net.priors, target, cfg)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            print(f"step {step + 1} loss {loss.item():.4f}")
    return {"loss": loss.item()}


if __name__ == "__main__":
    main()
