"""EMA weights are swapped in for validation and swapped out again, with own copies of both."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    epochs: int = 5
    batch_size: int = 16
    lr: float = 0.1
    decay: float = 0.9
    patience: int = 3
    seed: int = 14


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {n: t.detach().clone() for n, t in model.state_dict().items()}
        self.backup = {}

    @torch.no_grad()
    def update(self):
        for n, t in self.model.state_dict().items():
            if t.is_floating_point():
                self.shadow[n].lerp_(t, 1 - self.decay)
            else:
                self.shadow[n].copy_(t)

    @torch.no_grad()
    def __enter__(self):
        self.backup = {n: t.clone() for n, t in self.model.state_dict().items()}
        for n, t in self.model.state_dict().items():
            t.copy_(self.shadow[n])
        return self.model

    @torch.no_grad()
    def __exit__(self, *exc):
        for n, t in self.model.state_dict().items():
            t.copy_(self.backup[n])
        self.backup = {}


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, float("inf"), 0, None

    def step(self, loss, model):
        if loss < self.best:
            self.best, self.bad = loss, 0
            self.state = {n: t.clone() for n, t in model.state_dict().items()}
        else:
            self.bad += 1
        return self.bad >= self.patience


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    y = (x[:, :5].sum(1) * x[:, 5:].sum(1) > 0).long()
    flip = torch.rand(n, generator=g) < 0.1
    return TensorDataset(x, torch.where(flip, 1 - y, y))


def build():
    return nn.Sequential(nn.Linear(10, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 2))


@torch.no_grad()
def validate(model, data):
    was_training = model.training
    model.eval()
    x, y = data.tensors
    loss = F.cross_entropy(model(x), y).item()
    model.train(was_training)
    return loss


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.3)
    loader = DataLoader(make_data(480, 1), cfg.batch_size, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(cfg.seed))
    valid, ema, stopper = make_data(256, 2), EMA(model, cfg.decay), EarlyStopping(cfg.patience)
    for epoch in range(cfg.epochs):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update()
        scheduler.step()
        with ema as averaged:
            averaged_loss = validate(averaged, valid)
            stop = stopper.step(averaged_loss, averaged)
        print(f"epoch {epoch} loss {loss.item():.4f} val {validate(model, valid):.4f} ema {averaged_loss:.4f}")
        if stop:
            break
    model.load_state_dict(stopper.state)
    return {"best": stopper.best, "restored": validate(model, valid)}


if __name__ == "__main__":
    main()
