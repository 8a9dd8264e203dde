"""Image classifier with an exponential moving average of the weights for evaluation and checkpoints."""
import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    classes: int = 4
    size: int = 8
    epochs: int = 5
    batch_size: int = 16
    lr: float = 0.05
    momentum: float = 0.9
    ema_decay: float = 0.95
    seed: int = 37


def make_dataset(n, seed, cfg):
    g = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(cfg.classes, 1, cfg.size, cfg.size, generator=torch.Generator().manual_seed(0))
    y = torch.randint(cfg.classes, (n,), generator=g)
    x = 3.0 + 2.0 * (prototypes[y] + 0.9 * torch.randn(n, 1, cfg.size, cfg.size, generator=g))
    return TensorDataset(x, y)


def conv_bn(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class ConvNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.features = nn.Sequential(conv_bn(1, 12), nn.MaxPool2d(2), conv_bn(12, 24))
        self.fc = nn.Linear(24 * (cfg.size // 2) ** 2, cfg.classes)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


class ModelEMA:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model).eval()
        self.module.requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for ema_p, p in zip(self.module.parameters(), model.parameters()):
            ema_p.mul_(decay).add_(p, alpha=1 - decay)
        for ema_b, b in zip(self.module.buffers(), model.buffers()):
            ema_b.copy_(b)


class Engine:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = ConvNet(cfg)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=cfg.momentum, weight_decay=5e-4, nesterov=True)
        self.ema = ModelEMA(self.model, cfg.ema_decay)
        self.best = 0.0
        self.best_state = None

    def train_one_epoch(self, loader):
        self.model.train()
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(self.model(x), y, label_smoothing=0.05)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.ema.update(self.model)
            total += loss.item()
        return total / len(loader)

    @torch.no_grad()
    def evaluate(self, loader):
        net = self.ema.module
        net.eval()
        hits = sum((net(x).argmax(1) == y).sum().item() for x, y in loader)
        return hits / len(loader.dataset)

    def fit(self, train, valid):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.cfg.epochs)
        for epoch in range(self.cfg.epochs):
            loss = self.train_one_epoch(train)
            scheduler.step()
            accuracy = self.evaluate(valid)
            if accuracy >= self.best:
                self.best, self.best_state = accuracy, copy.deepcopy(self.ema.module.state_dict())
            print(f"epoch {epoch} loss {loss:.4f} ema accuracy {accuracy:.3f}")
        return self.best


def main():
    cfg = Config()
    train = DataLoader(make_dataset(320, 1, cfg), cfg.batch_size, shuffle=True, drop_last=True,
                       generator=torch.Generator().manual_seed(cfg.seed))
    valid = DataLoader(make_dataset(256, 2, cfg), 64)
    engine = Engine(cfg)
    best = engine.fit(train, valid)
    return {"best_ema_accuracy": best, "engine": engine}


if __name__ == "__main__":
    main()
