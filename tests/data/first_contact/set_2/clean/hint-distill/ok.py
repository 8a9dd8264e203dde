"""FitNets: a student imitates hidden layers that forward hooks collect, then only its head is tuned."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    dim: int = 16
    classes: int = 5
    batch: int = 50
    train: int = 500
    teacher_epochs: int = 3
    hint_epochs: int = 3
    epochs: int = 3
    head_epochs: int = 2
    temperature: float = 3.0
    seed: int = 38


class Net(nn.Module):
    def __init__(self, cfg, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(cfg.dim, width), nn.BatchNorm1d(width), nn.ReLU())
        self.block = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(width, cfg.classes)

    def forward(self, x):
        return self.head(self.block(self.stem(x)))

    def train(self, mode=True):
        super().train(mode)
        if mode and not next(self.stem.parameters()).requires_grad:
            self.stem.eval()
            self.block.eval()
        return self


class Tap:
    def __init__(self, module, detach):
        self.detach, self.value = detach, None
        self.handle = module.register_forward_hook(self)

    def __call__(self, module, inputs, output):
        self.value = output.detach() if self.detach else output

    def take(self):
        value, self.value = self.value, None
        return value


def batches(cfg, x, y):
    for index in torch.randperm(len(x)).split(cfg.batch):
        yield x[index], y[index]


@torch.no_grad()
def accuracy(model, x, y):
    was = model.training
    model.eval()
    result = (model(x).argmax(1) == y).float().mean().item()
    model.train(was)
    return result


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    rule = torch.randn(cfg.dim, cfg.classes)
    x = torch.randn(cfg.train, cfg.dim)
    y = (x @ rule).argmax(1)
    teacher, student = Net(cfg, 64), Net(cfg, 16)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for _ in range(cfg.teacher_epochs):
        for bx, by in batches(cfg, x, y):
            optimizer.zero_grad()
            F.cross_entropy(teacher(bx), by).backward()
            optimizer.step()
    teacher.eval().requires_grad_(False)

    regressor = nn.Linear(16, 64)
    optimizer = torch.optim.Adam(student.stem.parameters(), lr=5e-3)
    optimizer.add_param_group({"params": regressor.parameters(), "lr": 1e-2})
    guide, guided = Tap(teacher.stem, detach=True), Tap(student.stem, detach=False)
    for _ in range(cfg.hint_epochs):
        for bx, _ in batches(cfg, x, y):
            with torch.no_grad():
                teacher(bx)
            student.stem(bx)
            loss = F.mse_loss(regressor(guided.take()), guide.take())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    guide.handle.remove()
    guided.handle.remove()
    print(f"hint {loss.item():.4f}")

    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
    for epoch in range(cfg.epochs + cfg.head_epochs):
        if epoch == cfg.epochs:
            student.stem.requires_grad_(False)
            student.block.requires_grad_(False)
            student.train()
            optimizer = torch.optim.SGD(student.head.parameters(), lr=0.05)
        for bx, by in batches(cfg, x, y):
            T = cfg.temperature
            logits = student(bx)
            soft = F.kl_div(F.log_softmax(logits / T, 1), F.softmax(teacher(bx) / T, 1), reduction="batchmean")
            loss = 0.7 * T * T * soft + 0.3 * F.cross_entropy(logits, by)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} student {accuracy(student, x, y):.3f}")
    return accuracy(student, x, y)


if __name__ == "__main__":
    main()
