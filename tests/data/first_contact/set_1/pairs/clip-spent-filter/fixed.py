"""LoRA fine-tuning of a small denoising transformer on rows with a few corrupted samples."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    seed: int = 42
    rank: int = 4
    lora_alpha: float = 8.0
    learning_rate: float = 0.04
    max_train_steps: int = 80
    train_batch_size: int = 16
    max_grad_norm: float = 1.0
    lr_warmup_steps: int = 5
    log_every: int = 20


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.t() @ self.lora_B.t()) * self.scale


class Denoiser(nn.Module):
    def __init__(self, dim=16, width=48):
        super().__init__()
        self.proj_in = nn.Linear(dim, width)
        self.attn_out = nn.Linear(width, width)
        self.ff = nn.Linear(width, width)
        self.proj_out = nn.Linear(width, dim)

    def forward(self, x):
        h = self.proj_in(x)
        h = h + F.gelu(self.attn_out(h))
        h = h + F.gelu(self.ff(h))
        return self.proj_out(h)


def inject_lora(model, rank, alpha, targets=("attn_out", "ff", "proj_out")):
    model.requires_grad_(False)
    for name in targets:
        setattr(model, name, LoRALinear(getattr(model, name), rank, alpha))
    return model


class CorruptedRows:
    """Clean rows lie on a plane; now and then a row of the target is far off."""

    def __init__(self, dim, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.basis = torch.randn(3, dim, generator=self.g)
        self.dim = dim

    def sample(self, n, outliers=True):
        clean = torch.randn(n, 3, generator=self.g) @ self.basis
        noisy = clean + 0.3 * torch.randn(n, self.dim, generator=self.g)
        target = clean.clone()
        if outliers and torch.rand(1, generator=self.g).item() < 0.15:
            target[0] = target[0] * 6
        return noisy, target


def get_scheduler(optimizer, warmup, total):
    def rule(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.1, 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, rule)


def main(args=Args()):
    torch.manual_seed(args.seed)
    model = inject_lora(Denoiser(), args.rank, args.lora_alpha)
    data = CorruptedRows(16, args.seed)
    val_x, val_y = data.sample(256, outliers=False)

    lora_layers = list(filter(lambda p: p.requires_grad, model.parameters()))
    optimizer = torch.optim.SGD(lora_layers, lr=args.learning_rate, momentum=0.9)
    lr_scheduler = get_scheduler(optimizer, args.lr_warmup_steps, args.max_train_steps)

    largest = 0.0
    for step in range(args.max_train_steps):
        model.train()
        x, y = data.sample(args.train_batch_size)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        params_to_clip = lora_layers
        nn.utils.clip_grad_norm_(params_to_clip, args.max_grad_norm)
        grads = [p.grad for p in optimizer.param_groups[0]["params"]]
        largest = max(largest, torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])).item())
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        if step % args.log_every == 0:
            model.eval()
            with torch.no_grad():
                val = F.mse_loss(model(val_x), val_y).item()
            print(f"step {step} loss {loss.item():.4f} val {val:.4f} lr {lr_scheduler.get_last_lr()[0]:.4f}")
    model.eval()
    with torch.no_grad():
        val = F.mse_loss(model(val_x), val_y).item()
    print(f"final val {val:.4f}")
    return {"val": val, "largest_norm": largest, "model": model}


if __name__ == "__main__":
    main()
