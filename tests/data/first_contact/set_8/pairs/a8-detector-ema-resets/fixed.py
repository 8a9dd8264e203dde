from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class EMAConfig:
    enabled: bool = True
    decay: float = 0.9


@dataclass
class TrainConfig:
    epochs: int = 6
    batch_size: int = 32
    lr: float = 2e-3
    ema: EMAConfig = field(default_factory=EMAConfig)


def conv_block(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, stride=2, padding=1), nn.GroupNorm(4, c_out), nn.SiLU()
    )


class TinyDetector(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.backbone = nn.Sequential(conv_block(1, 16), conv_block(16, 32))
        self.neck = nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Conv2d(32, 1 + 4 + n_classes, 1)

    def forward(self, x):
        return self.head(F.silu(self.neck(self.backbone(x))))


class DetectionLoss:
    def __call__(self, pred, target):
        objectness, boxes, classes = pred[:, :1], pred[:, 1:5], pred[:, 5:]
        mask = target["obj"]
        obj_loss = F.binary_cross_entropy_with_logits(objectness, mask)
        box_loss = ((boxes.sigmoid() - target["box"]).abs() * mask).sum() / mask.sum()
        cls = F.cross_entropy(classes, target["cls"], reduction="none").unsqueeze(1)
        return obj_loss + 2.0 * box_loss + (cls * mask).sum() / mask.sum()


class ExponentialMovingAverage:
    def __init__(self, model, decay):
        self.model = model
        self.decay = decay
        self.shadow = {k: p.detach().clone() for k, p in model.named_parameters()}
        self.backup = {}

    @torch.no_grad()
    def update(self):
        for name, param in self.model.named_parameters():
            self.shadow[name].lerp_(param, 1.0 - self.decay)

    @torch.no_grad()
    def apply_shadow(self):
        for name, param in self.model.named_parameters():
            self.backup[name] = param.detach().clone()
            param.copy_(self.shadow[name])

    @torch.no_grad()
    def restore(self):
        for name, param in self.model.named_parameters():
            param.copy_(self.backup[name])
        self.backup = {}


class ModelTrainer:
    def __init__(self, cfg, model):
        self.cfg = cfg
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
        self.loss_fn = DetectionLoss()
        self.ema = ExponentialMovingAverage(model, cfg.ema.decay) if cfg.ema.enabled else None
        self.checkpoints = []

    def train_one_batch(self, images, targets):
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(images), targets)
        loss.backward()
        self.optimizer.step()
        if self.ema:
            self.ema.update()
        return loss.item()

    def train_one_epoch(self, images, targets):
        self.model.train()
        total, batches = 0.0, torch.randperm(len(images)).split(self.cfg.batch_size)
        for pick in batches:
            total += self.train_one_batch(images[pick], {k: v[pick] for k, v in targets.items()})
        return total / len(batches)

    def save_checkpoint(self, epoch):
        checkpoint = {"epoch": epoch, "optimizer": self.optimizer.state_dict()}
        if self.ema:
            self.ema.apply_shadow()
            checkpoint["ema"] = {k: v.clone() for k, v in self.model.state_dict().items()}
            self.ema.restore()
        checkpoint["model"] = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.checkpoints.append(checkpoint)

    def solve(self, images, targets):
        for epoch in range(self.cfg.epochs):
            loss = self.train_one_epoch(images, targets)
            print(f"epoch {epoch} loss {loss:.4f}")
            self.save_checkpoint(epoch)


def make_scenes(n, size=32, grid=8, n_classes=3):
    images = 0.1 * torch.randn(n, 1, size, size)
    target = {
        "obj": torch.zeros(n, 1, grid, grid),
        "box": torch.zeros(n, 4, grid, grid),
        "cls": torch.zeros(n, grid, grid, dtype=torch.long),
    }
    stride = size // grid
    for i in range(n):
        label = int(torch.randint(0, n_classes, (1,)))
        w, h = (torch.randint(4, 12, (2,))).tolist()
        x, y = int(torch.randint(0, size - w, (1,))), int(torch.randint(0, size - h, (1,)))
        images[i, 0, y : y + h, x : x + w] += 0.5 + 0.5 * label
        cx, cy = (x + w / 2) / stride, (y + h / 2) / stride
        gx, gy = int(cx), int(cy)
        target["obj"][i, 0, gy, gx] = 1.0
        target["box"][i, :, gy, gx] = torch.tensor([cx - gx, cy - gy, w / size, h / size])
        target["cls"][i, gy, gx] = label
    return images, target


def main():
    torch.manual_seed(0)
    images, targets = make_scenes(320)
    trainer = ModelTrainer(TrainConfig(), TinyDetector(3))
    trainer.solve(images, targets)
    last = trainer.checkpoints[-1]
    for key in ("model", "ema"):
        model = TinyDetector(3)
        model.load_state_dict(last[key])
        with torch.no_grad():
            print(f"{key} weights: loss {trainer.loss_fn(model(images), targets).item():.4f}")


if __name__ == "__main__":
    main()
