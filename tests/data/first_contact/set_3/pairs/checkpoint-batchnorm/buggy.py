"""Small convolutional classifier with activation checkpointing of its blocks."""
import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    channels: tuple = (3, 8, 12)
    classes: int = 4
    checkpointing: bool = True
    epochs: int = 3
    batch_size: int = 16
    lr: float = 0.05
    label_smoothing: float = 0.05
    bn_momentum: float = 0.03
    seed: int = 13


class ConvBlock(nn.Module):
    def __init__(self, c_in, c_out, cfg):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(c_out, momentum=cfg.bn_momentum)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Backbone(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.checkpointing = cfg.checkpointing
        pairs = list(zip(cfg.channels[:-1], cfg.channels[1:]))
        self.blocks = nn.ModuleList(ConvBlock(a, b, cfg) for a, b in pairs)
        self.head = nn.Linear(cfg.channels[-1], cfg.classes)

    def run_block(self, block, x):
        if self.checkpointing and self.training:
            return checkpoint(block, x, use_reentrant=False)
        return block(x)

    def forward(self, x):
        for block in self.blocks:
            x = F.max_pool2d(self.run_block(block, x), 2)
        return self.head(x.mean(dim=(2, 3)))


class ModelEMA:
    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, m in zip(self.module.parameters(), model.parameters()):
            e.lerp_(m, 1 - self.decay)
        for e, m in zip(self.module.buffers(), model.buffers()):
            e.copy_(m)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Backbone(cfg)
        self.ema = ModelEMA(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9, nesterov=True)
        self.steps = 0

    def train_epoch(self, x, y):
        self.model.train()
        perm = torch.randperm(len(x))
        for i in range(0, len(x), self.cfg.batch_size):
            idx = perm[i:i + self.cfg.batch_size]
            loss = F.cross_entropy(self.model(x[idx]), y[idx], label_smoothing=self.cfg.label_smoothing)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.ema.update(self.model)
            self.steps += 1
        return loss.item()

    @torch.no_grad()
    def evaluate(self, model, x, y):
        model.eval()
        return F.cross_entropy(model(x), y).item()


def make_images(n, patterns):
    y = torch.randint(0, len(patterns), (n,))
    x = patterns[y] + 1.5 * torch.randn(n, *patterns.shape[1:]) + 0.7
    return x, y


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    patterns = torch.randn(cfg.classes, 3, 12, 12)
    train, val = make_images(320, patterns), make_images(128, patterns)
    trainer = Trainer(cfg)
    for epoch in range(cfg.epochs):
        loss = trainer.train_epoch(*train)
        print(f"epoch {epoch} train {loss:.4f} ema val {trainer.evaluate(trainer.ema.module, *val):.4f}")
    bn = trainer.model.blocks[0].bn
    return {
        "val_loss": trainer.evaluate(trainer.model, *val),
        "steps": trainer.steps,
        "bn_updates": int(bn.num_batches_tracked),
        "running_mean_norm": bn.running_mean.norm().item(),
    }


if __name__ == "__main__":
    main()
