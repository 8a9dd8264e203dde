from dataclasses import dataclass
from typing import List

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Stage:
    name: str
    epochs: int
    optimizer: str
    learning_rate: float
    momentum: float = 0.0


@dataclass
class TrainConfig:
    stages: List[Stage]
    weight_decay: float = 1e-3
    batch_size: int = 32
    seed: int = 17


OPTIMIZERS = {
    "sgd": lambda groups, s: torch.optim.SGD(groups, lr=s.learning_rate, momentum=s.momentum),
    "adamw": lambda groups, s: torch.optim.AdamW(groups, lr=s.learning_rate),
}


class PatchEncoder(nn.Module):
    def __init__(self, width=24, depth=2, patches=16, patch_dim=4):
        super().__init__()
        self.embed = nn.Linear(patch_dim, width)
        self.pos = nn.Parameter(torch.randn(patches, width) * 0.02)
        layer = dict(d_model=width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(**layer) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = self.embed(x) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(dim=1)


class Classifier(nn.Module):
    def __init__(self, num_classes=4, width=24):
        super().__init__()
        self.encoder = PatchEncoder(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.head(self.encoder(x))


def split_decay(model, weight_decay):
    decay, plain = [], []
    for p in model.parameters():
        (decay if p.ndim > 1 else plain).append(p)
    return [
        {"params": decay, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


class Callback:
    def on_stage_start(self, trainer, stage):
        pass

    def on_epoch_end(self, trainer, stage, epoch, metrics):
        pass


class ConsoleLogger(Callback):
    def on_stage_start(self, trainer, stage):
        count = sum(p.numel() for p in trainer.model.parameters())
        print(f"[{stage.name}] {stage.optimizer}, {count} parameters")

    def on_epoch_end(self, trainer, stage, epoch, metrics):
        print(f"[{stage.name}] epoch {epoch}", {k: round(v, 4) for k, v in metrics.items()})


class StagedTrainer:
    def __init__(self, model, config, callbacks):
        self.model = model
        self.config = config
        self.callbacks = callbacks
        self.param_groups = split_decay(model, config.weight_decay)
        self.optimizer = None

    def emit(self, event, *args):
        for callback in self.callbacks:
            getattr(callback, event)(self, *args)

    def build_optimizer(self, stage):
        return OPTIMIZERS[stage.optimizer](self.param_groups, stage)

    def train_epoch(self, images, labels):
        self.model.train()
        total = 0.0
        for idx in torch.randperm(len(images)).split(self.config.batch_size):
            loss = F.cross_entropy(self.model(images[idx]), labels[idx])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(idx)
        return total / len(images)

    @torch.no_grad()
    def evaluate(self, images, labels):
        self.model.eval()
        return (self.model(images).argmax(1) == labels).float().mean().item()

    def fit(self, train_set, val_set):
        for stage in self.config.stages:
            self.emit("on_stage_start", stage)
            self.optimizer = self.build_optimizer(stage)
            for epoch in range(stage.epochs):
                metrics = {"loss": self.train_epoch(*train_set), "acc": self.evaluate(*val_set)}
                self.emit("on_epoch_end", stage, epoch, metrics)


def patches(n, generator):
    y = torch.randint(0, 4, (n,), generator=generator)
    t = torch.arange(16).float()
    wave = torch.sin((y.float() + 1)[:, None] * t[None] * 0.39)
    x = wave[:, :, None] * torch.tensor([1.0, -1.0, 0.5, 0.2])
    return x + 0.3 * torch.randn(n, 16, 4, generator=generator), y


def main():
    config = TrainConfig(
        stages=[
            Stage("warmup", 2, "sgd", 1e-3, momentum=0.9),
            Stage("main", 6, "sgd", 5e-2, momentum=0.9),
        ]
    )
    torch.manual_seed(config.seed)
    gen = torch.Generator().manual_seed(config.seed)
    train_set, val_set = patches(256, gen), patches(128, gen)
    trainer = StagedTrainer(Classifier(), config, [ConsoleLogger()])
    trainer.fit(train_set, val_set)


if __name__ == "__main__":
    main()
