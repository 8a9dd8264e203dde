"""Set-style detector: each image has up to four boxes, padded to a fixed number."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    max_boxes: int = 4
    hidden: int = 48
    batch_size: int = 4
    epochs: int = 5
    iters_per_epoch: int = 24
    full_images: float = 0.75
    lr: float = 2e-3
    grad_clip: float = 5.0
    dist_weight: float = 2.0
    seed: int = 31


class BoxHead(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.max_boxes = cfg.max_boxes
        self.trunk = nn.Sequential(
            nn.Conv2d(cfg.max_boxes, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * 8 * 8, cfg.hidden), nn.ReLU())
        self.boxes = nn.Linear(cfg.hidden, cfg.max_boxes * 4)
        self.scores = nn.Linear(cfg.hidden, cfg.max_boxes)

    def forward(self, images, valid):
        h = self.trunk(images)
        boxes = self.boxes(h).view(-1, self.max_boxes, 4).sigmoid()
        return boxes * valid.unsqueeze(-1), self.scores(h)


def make_batch(cfg, gen):
    n = cfg.batch_size
    boxes, valid = torch.zeros(n, cfg.max_boxes, 4), torch.zeros(n, cfg.max_boxes)
    images = 0.05 * torch.randn(n, cfg.max_boxes, 16, 16, generator=gen)
    for i in range(n):
        full = torch.rand((), generator=gen) < cfg.full_images
        count = cfg.max_boxes if full else int(torch.randint(1, cfg.max_boxes, (), generator=gen))
        for j in range(count):
            w, h = (torch.rand(2, generator=gen) * 0.3 + 0.2).tolist()
            cx, cy = (torch.rand(2, generator=gen) * 0.5 + 0.25).tolist()
            boxes[i, j] = torch.tensor([cx, cy, w, h])
            valid[i, j] = 1
            x0, x1 = int((cx - w / 2) * 16), int((cx + w / 2) * 16) + 1
            y0, y1 = int((cy - h / 2) * 16), int((cy + h / 2) * 16) + 1
            images[i, j, max(y0, 0):y1, max(x0, 0):x1] += 1
    return images, boxes, valid


class SetCriterion(nn.Module):
    def __init__(self, dist_weight):
        super().__init__()
        self.dist_weight = dist_weight

    def loss_boxes(self, pred, target, valid):
        l1 = (pred - target).abs().sum(-1)
        centre = torch.sqrt(((pred[..., :2] - target[..., :2]) ** 2).sum(-1) + 1e-9)
        per_box = l1 + self.dist_weight * centre
        return torch.where(valid > 0, per_box, torch.zeros_like(per_box)).sum() / valid.sum()

    def forward(self, pred, scores, target, valid):
        return {"boxes": self.loss_boxes(pred, target, valid),
                "scores": F.binary_cross_entropy_with_logits(scores, valid)}


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.model, self.criterion = BoxHead(cfg), SetCriterion(cfg.dist_weight)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.updates = 0

    def train_step(self):
        images, boxes, valid = make_batch(self.cfg, self.gen)
        pred, scores = self.model(images, valid)
        losses = self.criterion(pred, scores, boxes, valid)
        loss = sum(losses.values())
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.grad_clip)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad()
            return loss.item()
        self.optimizer.step()
        self.updates += 1
        return loss.item()

    @torch.no_grad()
    def validate(self):
        gen = torch.Generator().manual_seed(404)
        errors = []
        for _ in range(6):
            images, boxes, valid = make_batch(self.cfg, gen)
            pred, _ = self.model(images, valid)
            errors.append(((pred - boxes).abs().sum(-1) * valid).sum() / valid.sum())
        return torch.stack(errors).mean().item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            total = sum(self.train_step() for _ in range(self.cfg.iters_per_epoch))
            print(f"epoch {epoch} loss {total / self.cfg.iters_per_epoch:.4f} val L1 {self.validate():.4f}")
        return {"val_l1": self.validate(), "updates": self.updates}


def main():
    return Trainer(Config()).fit()


if __name__ == "__main__":
    main()
