"""Lookahead round AdamW, evaluation with EMA weights that are swapped in and out, best checkpoint kept."""
import copy
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    lr: float = 1e-2
    k: int = 5
    alpha: float = 0.5
    ema_decay: float = 0.95
    epochs: int = 8
    batch_size: int = 32
    seed: int = 16


class Lookahead(torch.optim.Optimizer):
    def __init__(self, base, k=5, alpha=0.5):
        self.base, self.k, self.alpha = base, k, alpha
        super().__init__(base.param_groups, base.defaults)
        self.param_groups = base.param_groups
        self.slow = {p: p.detach().clone() for g in self.param_groups for p in g["params"]}
        self.counter = 0

    @torch.no_grad()
    def synchronize(self):
        for p, slow in self.slow.items():
            slow.add_(p.detach() - slow, alpha=self.alpha)
            p.copy_(slow)

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.counter += 1
        if self.counter % self.k == 0:
            self.synchronize()
        return loss


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self):
        for n, p in self.model.named_parameters():
            self.shadow[n].lerp_(p, 1 - self.decay)

    @contextmanager
    def applied(self):
        backup = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        with torch.no_grad():
            for n, p in self.model.named_parameters():
                p.copy_(self.shadow[n])
        try:
            yield self.model
        finally:
            with torch.no_grad():
                for n, p in self.model.named_parameters():
                    p.copy_(backup[n])


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    loss = F.cross_entropy(model(x), y).item()
    model.train()
    return loss


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = torch.randn(5, 12)
    y = torch.randint(0, 5, (768,))
    x = centres[y] + 1.2 * torch.randn(768, 12)
    xv, yv, x, y = x[512:], y[512:], x[:512], y[:512]
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))
    optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=cfg.lr), cfg.k, cfg.alpha)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base, cfg.epochs)
    ema = EMA(model, cfg.ema_decay)
    best, best_state = float("inf"), None
    for epoch in range(cfg.epochs):
        for idx in torch.randperm(len(x)).split(cfg.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            optimizer.step()
            ema.update()
        scheduler.step()
        with ema.applied() as averaged:
            val = evaluate(averaged, xv, yv)
            if val < best:
                best, best_state = val, copy.deepcopy(averaged.state_dict())
        if epoch % 3 == 0:
            print(f"epoch {epoch} train {loss.item():.4f} ema val {val:.4f}")
    model.load_state_dict(best_state)
    final = evaluate(model, xv, yv)
    return {"best": best, "restored": final}


if __name__ == "__main__":
    main()
