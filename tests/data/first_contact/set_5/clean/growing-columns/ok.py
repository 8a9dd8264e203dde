"""Progressive columns: each task adds a column; the earlier ones are frozen and only read."""
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Settings:
    tasks: tuple = (3, 17, 40)
    epochs: int = 6
    batches: int = 10
    micro: int = 2
    lr: float = 0.02
    log: list = field(default_factory=list)


class Column(nn.Module):
    def __init__(self, n_in, width, n_earlier):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.norm = nn.BatchNorm1d(width)
        self.lateral = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(n_earlier))
        self.head = nn.Linear(width, 2)

    def features(self, x):
        return torch.relu(self.norm(self.inp(x)))

    def forward(self, x, earlier):
        h = self.features(x)
        for layer, other in zip(self.lateral, earlier):
            h = h + layer(other)
        return self.head(torch.relu(h))


class Progressive(nn.Module):
    def __init__(self, n_in=8, width=16):
        super().__init__()
        self.n_in, self.width = n_in, width
        self.columns = nn.ModuleList()

    def grow(self):
        for column in self.columns:
            column.requires_grad_(False)
        self.columns.append(Column(self.n_in, self.width, len(self.columns)))
        return self.columns[-1]

    def train(self, mode=True):
        super().train(mode)
        for column in self.columns[:-1]:
            column.eval()
        return self

    def forward(self, x, task=-1):
        task = task % len(self.columns)
        with torch.no_grad():
            earlier = [column.features(x) for column in self.columns[:task]]
        return self.columns[task](x, earlier)


def make_loader(seed, settings):
    g = torch.Generator().manual_seed(seed)
    direction = torch.randn(8, generator=g)
    for _ in range(settings.batches * settings.micro):
        x = torch.randn(32, 8, generator=g)
        yield x, (x @ direction > 0).long()


def fit(model, seed, settings):
    # only the new column is trained, so its optimizer starts with the task
    optimizer = torch.optim.SGD(model.grow().parameters(), lr=settings.lr, momentum=0.9)
    for _ in range(settings.epochs):
        model.train()
        optimizer.zero_grad()
        for i, (x, y) in enumerate(make_loader(seed, settings), start=1):
            loss = F.cross_entropy(model(x), y) / settings.micro
            loss.backward()
            if i % settings.micro == 0:
                optimizer.step()
                optimizer.zero_grad()
        settings.log.append(loss.item() * settings.micro)


@torch.no_grad()
def evaluate(model, settings):
    model.eval()
    scores = []
    for task, seed in enumerate(settings.tasks[: len(model.columns)]):
        x, y = map(torch.cat, zip(*make_loader(seed, settings)))
        scores.append(round((model(x, task).argmax(1) == y).float().mean().item(), 3))
    return scores


def main():
    torch.manual_seed(1)
    settings, model = Settings(), Progressive()
    for seed in settings.tasks:
        fit(model, seed, settings)
        print("accuracy by task:", evaluate(model, settings))


if __name__ == "__main__":
    main()
