"""Quantization-aware fine-tuning of a small tabular classifier."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class QATConfig:
    weight_bits: int = 6
    act_bits: int = 8
    group_size: int = 8
    lr: float = 3e-3
    steps: int = 250
    batch_size: int = 64


def quantize_groups(t, bits, group_size):
    qmax = 2 ** (bits - 1) - 1
    groups = t.reshape(-1, group_size)
    scale = groups.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / qmax
    q = torch.round(groups / scale).clamp(-qmax - 1, qmax)
    return (q * scale).reshape(t.shape)


class _GroupedQATLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, cfg):
        x_q = quantize_groups(x, cfg.act_bits, cfg.group_size)
        w_q = quantize_groups(weight, cfg.weight_bits, cfg.group_size)
        ctx.save_for_backward(x_q, w_q)
        ctx.has_bias = bias is not None
        out = x_q @ w_q.t()
        if bias is not None:
            out = out + bias
        return out

    @staticmethod
    def backward(ctx, grad_output):
        x_q, w_q = ctx.saved_tensors
        grad_input = grad_output @ w_q
        grad_weight = grad_output.t() @ x_q
        grad_bias = grad_output.sum(0) if ctx.has_bias else None
        return grad_input, grad_weight, grad_bias, None


class QATLinear(nn.Linear):
    def __init__(self, in_features, out_features, bias=True, cfg=None):
        super().__init__(in_features, out_features, bias=bias)
        self.cfg = cfg

    @classmethod
    def from_linear(cls, mod, cfg):
        new = cls(mod.in_features, mod.out_features, mod.bias is not None, cfg)
        new.weight = mod.weight
        new.bias = mod.bias
        return new

    def forward(self, x):
        lead = x.shape[:-1]
        out = _GroupedQATLinear.apply(
            x.reshape(-1, x.shape[-1]), self.weight, self.bias, self.cfg)
        return out.reshape(*lead, -1)


def prepare_qat(module, cfg):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, QATLinear.from_linear(child, cfg))
        else:
            prepare_qat(child, cfg)
    return module


def make_data(n=1024, dim=16, classes=4):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, classes, generator=g)
    y = (x @ w + torch.tensor([3.0, 0.0, -2.0, 1.0])).argmax(dim=1)
    return x, y


def train(model, x, y, cfg):
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0)
    model.train()
    for step in range(cfg.steps):
        idx = torch.randint(0, len(x), (cfg.batch_size,))
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    return model


def main():
    torch.manual_seed(0)
    cfg = QATConfig()
    x, y = make_data()
    model = nn.Sequential(
        nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 4))
    prepare_qat(model, cfg)
    train(model, x, y, cfg)
    model.eval()
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    print(f"accuracy {acc:.3f}")
    return model


if __name__ == "__main__":
    main()
