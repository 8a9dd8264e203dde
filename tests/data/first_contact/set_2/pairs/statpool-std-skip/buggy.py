"""Speaker embedding trainer: TDNN encoder, statistics pooling, softmax over speakers."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    speakers: int = 6
    features: int = 12
    frames: int = 40
    channels: int = 24
    batch_size: int = 16
    epochs: int = 6
    lr: float = 3e-3
    max_norm: float = 5.0
    seed: int = 7


def make_corpus(cfg, utterances, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(cfg.speakers, cfg.features, generator=torch.Generator().manual_seed(1))
    y = torch.randint(cfg.speakers, (utterances,), generator=g)
    x = centres[y].unsqueeze(-1) + 0.8 * torch.randn(utterances, cfg.features, cfg.frames, generator=g)
    voiced = torch.rand(utterances, generator=g) > 0.05
    return TensorDataset(x * voiced[:, None, None], y)


class TDNNBlock(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class StatsPool(nn.Module):
    def forward(self, x):
        mean = x.mean(dim=-1)
        var = (x - mean.unsqueeze(-1)).pow(2).mean(dim=-1)
        std = torch.sqrt(var)
        return torch.cat([mean, std], dim=-1)


class XVector(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.frame = nn.Sequential(TDNNBlock(cfg.features, cfg.channels, 1), TDNNBlock(cfg.channels, cfg.channels, 2))
        self.pool = StatsPool()
        self.embed = nn.Linear(2 * cfg.channels, 16)
        self.head = nn.Linear(16, cfg.speakers)

    def forward(self, x):
        return self.head(torch.relu(self.embed(self.pool(self.frame(x)))))


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = XVector(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.criterion = nn.CrossEntropyLoss()
        self.skipped = 0
        self.steps = 0

    def train_epoch(self, loader):
        self.model.train()
        total = 0.0
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_norm)
            if not torch.isfinite(norm):
                self.skipped += 1
                continue
            self.optimizer.step()
            self.steps += 1
            total += loss.item()
        return total / len(loader)

    @torch.no_grad()
    def accuracy(self, loader):
        self.model.eval()
        hits = sum((self.model(x).argmax(-1) == y).sum().item() for x, y in loader)
        return hits / len(loader.dataset)


def main():
    cfg = Config()
    train = DataLoader(make_corpus(cfg, 256, 2), cfg.batch_size, shuffle=True, generator=torch.Generator().manual_seed(3))
    valid = DataLoader(make_corpus(cfg, 96, 4), 32)
    trainer = Trainer(cfg)
    for epoch in range(cfg.epochs):
        loss = trainer.train_epoch(train)
        print(f"epoch {epoch} loss {loss:.3f} val acc {trainer.accuracy(valid):.3f}")
    return {"accuracy": trainer.accuracy(valid), "steps": trainer.steps, "skipped": trainer.skipped}


if __name__ == "__main__":
    main()
