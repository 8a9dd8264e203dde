"""LoRA with merging: the delta is folded into the frozen weight for evaluation and taken out for training."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    width: int = 32
    rank: int = 4
    classes: int = 5
    pretrain_steps: int = 60
    steps: int = 120
    batch: int = 32
    lr: float = 1e-2
    seed: int = 12


class MergedLinear(nn.Linear):
    def __init__(self, fin, fout, rank=0, alpha=8.0):
        super().__init__(fin, fout)
        self.merged = False
        self.rank = rank
        if rank:
            self.lora_A = nn.Parameter(torch.randn(rank, fin) / fin ** 0.5)
            self.lora_B = nn.Parameter(torch.zeros(fout, rank))
            self.scaling = alpha / rank

    def delta(self):
        return self.scaling * (self.lora_B @ self.lora_A)

    def train(self, mode=True):
        super().train(mode)
        if self.rank and self.merged == mode:
            with torch.no_grad():
                self.weight.add_(self.delta(), alpha=-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        if self.rank and not self.merged:
            y = y + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)
        return y


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.fc1 = MergedLinear(20, cfg.width, cfg.rank)
        self.fc2 = MergedLinear(cfg.width, cfg.width, cfg.rank)
        self.head = nn.Linear(cfg.width, cfg.classes)

    def forward(self, x):
        return self.head(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def batch(cfg, g, shift):
    x = torch.randn(cfg.batch, 20, generator=g)
    w = torch.randn(20, cfg.classes, generator=torch.Generator().manual_seed(5))
    return x, ((x + shift * x.roll(1, 1)) @ w).argmax(1)


def fit(model, params, cfg, steps, shift, seed):
    optimizer = torch.optim.AdamW(params, lr=cfg.lr, weight_decay=0.0)
    g = torch.Generator().manual_seed(seed)
    for step in range(steps):
        model.train()
        x, y = batch(cfg, g, shift)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            print(f"step {step + 1} loss {loss.item():.4f} acc {evaluate(model, cfg, shift):.3f}")


@torch.no_grad()
def evaluate(model, cfg, shift):
    model.eval()
    g = torch.Generator().manual_seed(777)
    hits = [(model(x).argmax(1) == y).float().mean() for x, y in (batch(cfg, g, shift) for _ in range(10))]
    model.train()
    return torch.stack(hits).mean().item()


def lora_state_dict(model):
    return {k: v.detach().clone() for k, v in model.state_dict().items() if "lora_" in k}


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = Net(cfg)
    base = [p for n, p in model.named_parameters() if "lora_" not in n]
    lora = [p for n, p in model.named_parameters() if "lora_" in n]
    for p in lora:
        p.requires_grad_(False)
    fit(model, base, cfg, cfg.pretrain_steps, 0.0, 1)
    for p in base:
        p.requires_grad_(False)
        p.grad = None
    for p in lora:
        p.requires_grad_(True)
    frozen = model.fc1.weight.detach().clone()
    fit(model, lora, cfg, cfg.steps, 0.7, 2)
    drift = (model.fc1.weight - frozen).abs().max().item()
    return {"accuracy": evaluate(model, cfg, 0.7), "drift": drift, "adapter": lora_state_dict(model)}


if __name__ == "__main__":
    main()
