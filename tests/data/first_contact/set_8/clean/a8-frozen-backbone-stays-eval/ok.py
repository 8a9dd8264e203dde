from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class DetectorConfig:
    freeze_at: int = 1
    norm_eval: bool = True
    lr: float = 4e-3
    warmup: int = 8
    accumulate: int = 2
    epochs: int = 6


def stage(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(c_out), nn.ReLU(inplace=True),
    )


class Backbone(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.stages = nn.ModuleList([stage(1, 12), stage(12, 24), stage(24, 32)])

    def freeze(self):
        for index in range(self.cfg.freeze_at + 1):
            self.stages[index].requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        for index in range(self.cfg.freeze_at + 1):
            self.stages[index].eval()
        if mode and self.cfg.norm_eval:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def forward(self, x):
        outputs = []
        for index, part in enumerate(self.stages):
            x = part(x)
            outputs.append(x)
        return outputs[-2:]


class CenterDetector(nn.Module):
    def __init__(self, cfg, n_classes):
        super().__init__()
        self.backbone = Backbone(cfg)
        self.lateral = nn.ModuleList([nn.Conv2d(24, 24, 1), nn.Conv2d(32, 24, 1)])
        self.head = nn.Conv2d(24, n_classes, 3, padding=1)
        nn.init.constant_(self.head.bias, -3.0)

    def forward(self, x):
        fine, coarse = self.backbone(x)
        top = F.interpolate(self.lateral[1](coarse), scale_factor=2)
        return self.head(F.relu(self.lateral[0](fine) + top))


def focal_loss(logits, heat):
    p = logits.sigmoid().clamp(1e-4, 1 - 1e-4)
    positive = heat.eq(1)
    loss = torch.where(
        positive, -(1 - p) ** 2 * p.log(), -((1 - heat) ** 4) * p**2 * (1 - p).log()
    )
    return loss.sum() / positive.sum().clamp(min=1)


def pretrain_backbone(backbone, images, labels):
    probe = nn.Linear(32, 3)
    optimizer = torch.optim.Adam([*backbone.parameters(), *probe.parameters()], lr=3e-3)
    nn.Module.train(backbone, True)
    for pick in torch.randperm(len(images)).split(16):
        loss = F.cross_entropy(probe(backbone(images[pick])[-1].mean((2, 3))), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {k: v.clone() for k, v in backbone.state_dict().items()}


def make_scenes(n, size=32, n_classes=3):
    images = 0.2 * torch.randn(n, 1, size, size)
    heat = torch.zeros(n, n_classes, size // 4, size // 4)
    labels = torch.randint(0, n_classes, (n,))
    for i, label in enumerate(labels.tolist()):
        y, x = torch.randint(0, size - 8, (2,)).tolist()
        images[i, 0, y : y + 4 + 2 * label, x : x + 8 - 2 * label] += 1.0 + 0.5 * label
        heat[i, label, (y + 4) // 4, (x + 4) // 4] = 1.0
    return images, heat, labels


def main():
    torch.manual_seed(0)
    cfg = DetectorConfig()
    images, heat, labels = make_scenes(192)
    weights = pretrain_backbone(Backbone(cfg), images, labels)
    model = CenterDetector(cfg, 3)
    model.backbone.load_state_dict(weights)
    model.backbone.freeze()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=cfg.lr)
    warmup = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / cfg.warmup)
    )
    for epoch in range(cfg.epochs):
        model.train()
        batches = torch.randperm(len(images)).split(16)
        total = 0.0
        for index, pick in enumerate(batches):
            loss = focal_loss(model(images[pick]), heat[pick])
            (loss / cfg.accumulate).backward()
            total += loss.item()
            if (index + 1) % cfg.accumulate == 0 or index + 1 == len(batches):
                nn.utils.clip_grad_norm_(trainable, 10.0)
                optimizer.step()
                optimizer.zero_grad()
                warmup.step()
        print(f"epoch {epoch} loss {total / len(batches):.4f}")


if __name__ == "__main__":
    main()
