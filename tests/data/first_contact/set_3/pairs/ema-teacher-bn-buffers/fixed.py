"""Semantic segmentation of small synthetic scenes, evaluated with an averaged copy of the network."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    classes: int = 3
    width: int = 8
    batch_size: int = 8
    epochs: int = 4
    iters: int = 12
    lr: float = 1e-2
    ema_decay: float = 0.9
    seed: int = 3


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        )


class TinyUNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        w = cfg.width
        self.down1 = ConvBlock(1, w)
        self.down2 = ConvBlock(w, 2 * w)
        self.up1 = ConvBlock(3 * w, w)
        self.head = nn.Conv2d(w, cfg.classes, 1)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(F.max_pool2d(d1, 2))
        up = F.interpolate(d2, scale_factor=2, mode="nearest")
        return self.head(self.up1(torch.cat([up, d1], dim=1)))


def make_batch(n, gen, classes, size=16):
    """Raw detector counts: blocks of different brightness on a bright background."""
    mask = torch.zeros(n, size, size, dtype=torch.long)
    for i in range(n):
        for c in range(1, classes):
            y, x = torch.randint(0, size - 6, (2,), generator=gen).tolist()
            mask[i, y:y + 6, x:x + 6] = c
    image = 40.0 + 15.0 * mask.float() + 5.0 * torch.randn(n, size, size, generator=gen)
    return image.unsqueeze(1), mask


class ModelEMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.module = copy.deepcopy(model)
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model, step):
        decay = min(self.decay, (1 + step) / (10 + step))
        for ema_p, p in zip(self.module.parameters(), model.parameters()):
            ema_p.mul_(decay).add_(p, alpha=1 - decay)
        for ema_b, b in zip(self.module.buffers(), model.buffers()):
            ema_b.copy_(b)


def mean_iou(pred, target, classes):
    ious = []
    for c in range(classes):
        inter = ((pred == c) & (target == c)).sum().item()
        union = ((pred == c) | (target == c)).sum().item()
        ious.append(inter / max(union, 1))
    return sum(ious) / classes


@torch.no_grad()
def validate(model, batches, classes):
    was_training = model.training
    model.eval()
    scores = [mean_iou(model(x).argmax(1), y, classes) for x, y in batches]
    model.train(was_training)
    return sum(scores) / len(scores)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    val = [make_batch(cfg.batch_size, gen, cfg.classes) for _ in range(3)]
    model = TinyUNet(cfg)
    ema = ModelEMA(model, cfg.ema_decay)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.epochs * cfg.iters)
    step, history = 0, []
    for epoch in range(cfg.epochs):
        model.train()
        running = 0.0
        for _ in range(cfg.iters):
            image, mask = make_batch(cfg.batch_size, gen, cfg.classes)
            loss = F.cross_entropy(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            ema.update(model, step)
            running += loss.item()
        miou = validate(model, val, cfg.classes)
        miou_ema = validate(ema.module, val, cfg.classes)
        history.append(miou_ema)
        print(f"epoch {epoch} loss {running / cfg.iters:.4f} mIoU {miou:.3f} mIoU(ema) {miou_ema:.3f}")
    return {"miou": miou, "miou_ema": history[-1]}


if __name__ == "__main__":
    main()
