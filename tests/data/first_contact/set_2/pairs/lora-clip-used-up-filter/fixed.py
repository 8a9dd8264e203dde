"""LoRA fine-tuning of a frozen backbone on a noisy regression stream with occasional outliers."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Args:
    rank: int = 4
    alpha: float = 8.0
    learning_rate: float = 0.02
    max_grad_norm: float = 1.0
    max_train_steps: int = 150
    batch_size: int = 16
    outlier_every: int = 25
    seed: int = 3


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


def inject_lora(module, args):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child, args.rank, args.alpha))
        else:
            inject_lora(child, args)


def build_model(args):
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    model.requires_grad_(False)
    inject_lora(model, args)
    return model


class Stream:
    def __init__(self, args, seed):
        self.args = args
        self.g = torch.Generator().manual_seed(seed)
        self.target = torch.randn(16, 8, generator=torch.Generator().manual_seed(1)) / 4
        self.count = 0

    def batch(self, clean=False):
        x = torch.randn(self.args.batch_size, 16, generator=self.g)
        y = torch.tanh(x @ self.target)
        if not clean and self.count % self.args.outlier_every == self.args.outlier_every - 1:
            y[0] += 60.0
        self.count += 1
        return x, y


def log_trainable(model):
    total = sum(p.numel() for p in model.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"trainable {trainable} of {total}")


@torch.no_grad()
def evaluate(model, stream, batches=8):
    model.eval()
    losses = [F.mse_loss(model(x), y).item() for x, y in (stream.batch(clean=True) for _ in range(batches))]
    model.train()
    return sum(losses) / len(losses)


def main():
    args = Args()
    torch.manual_seed(args.seed)
    model = build_model(args)
    log_trainable(model)
    lora_layers = list(filter(lambda p: p.requires_grad, model.parameters()))
    optimizer = torch.optim.SGD(lora_layers, lr=args.learning_rate, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.max_train_steps, eta_min=args.learning_rate / 10)
    train_stream, history = Stream(args, 10), []
    for step in range(args.max_train_steps):
        x, y = train_stream.batch()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(lora_layers, args.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 30 == 29:
            history.append(evaluate(model, Stream(args, 77)))
            print(f"step {step + 1} train {loss.item():.4f} eval {history[-1]:.4f}")
    return {"eval": history[-1], "worst": max(history), "model": model}


if __name__ == "__main__":
    main()
