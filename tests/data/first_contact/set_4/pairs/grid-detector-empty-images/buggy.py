"""YOLOv1-like single-class detector on a 4x4 grid, with a guard that drops broken batches."""
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    grid: int = 4
    size: int = 32
    images: int = 128
    batch: int = 16
    epochs: int = 8
    lr: float = 2e-3
    lambda_coord: float = 5.0
    lambda_noobj: float = 0.5
    max_norm: float = 10.0
    seed: int = 0


class Detector(nn.Module):
    def __init__(self, grid):
        super().__init__()
        layers, c = [], 1
        for width in (8, 16, 32):
            layers += [nn.Conv2d(c, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.1),
                       nn.MaxPool2d(2)]
            c = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Conv2d(c, 5, 1)

    def forward(self, x):
        return self.head(self.features(x)).permute(0, 2, 3, 1)


def draw(cfg, seed):
    g = torch.Generator().manual_seed(seed)
    cell = cfg.size // cfg.grid
    images = 0.1 * torch.randn(cfg.images, 1, cfg.size, cfg.size, generator=g)
    target = torch.zeros(cfg.images, cfg.grid, cfg.grid, 5)
    for i in range(cfg.images):
        for _ in range(0 if i % 12 == 11 else 2):
            w, h = (torch.rand(2, generator=g) * 0.3 + 0.12).tolist()
            cx, cy = (torch.rand(2, generator=g) * 0.6 + 0.2).tolist()
            x0, x1 = int((cx - w / 2) * cfg.size), int((cx + w / 2) * cfg.size)
            y0, y1 = int((cy - h / 2) * cfg.size), int((cy + h / 2) * cfg.size)
            images[i, 0, max(y0, 0): y1, max(x0, 0): x1] += 1.0
            col, row = int(cx * cfg.size) // cell, int(cy * cfg.size) // cell
            target[i, row, col] = torch.tensor([cx * cfg.grid - col, cy * cfg.grid - row, w, h, 1.0])
    return TensorDataset(images, target)


class YoloLoss(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.lambda_coord, self.lambda_noobj = cfg.lambda_coord, cfg.lambda_noobj

    def forward(self, pred, target):
        obj = target[..., 4:5]
        xy = obj * (torch.sigmoid(pred[..., :2]) - target[..., :2]) ** 2
        wh = obj * (torch.sigmoid(pred[..., 2:4]).sqrt() - target[..., 2:4].sqrt()) ** 2
        conf = (torch.sigmoid(pred[..., 4:5]) - obj) ** 2
        box = (xy + wh).sum((1, 2, 3))
        n_obj = obj.sum((1, 2, 3))
        box = torch.where(n_obj > 0, box / n_obj, torch.zeros_like(box))
        loss = self.lambda_coord * box.mean()
        loss = loss + ((obj + self.lambda_noobj * (1 - obj)) * conf).sum((1, 2, 3)).mean()
        return loss


class Trainer:
    def __init__(self, cfg, model):
        self.cfg, self.model = cfg, model
        self.criterion = YoloLoss(cfg)
        decay = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 5e-4},
                                            {"params": plain, "weight_decay": 0.0}], lr=cfg.lr)
        self.steps = 0

    def step(self, images, target):
        loss = self.criterion(self.model(images), target)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
            self.steps += 1
        return loss.item()

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        total, n, hits, objects = 0.0, 0, 0, 0
        for images, target in loader:
            pred = self.model(images)
            total += self.criterion(pred, target).item() * len(images)
            n += len(images)
            obj = target[..., 4] > 0
            hits += int((torch.sigmoid(pred[..., 4])[obj] > 0.5).sum())
            objects += int(obj.sum())
        self.model.train()
        return total / n, hits / objects


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg, Detector(cfg.grid))
    loader = DataLoader(draw(cfg, 1), cfg.batch, shuffle=True)
    val = DataLoader(draw(cfg, 2), 64)
    for epoch in range(cfg.epochs):
        losses = [trainer.step(x, y) for x, y in loader]
        if epoch % 4 == 3:
            loss, recall = trainer.evaluate(val)
            print(f"epoch {epoch} train {sum(losses) / len(losses):.4f} val {loss:.4f} recall {recall:.3f}")
    return {"model": trainer.model, "val": loss, "recall": recall, "steps": trainer.steps}


if __name__ == "__main__":
    main()
