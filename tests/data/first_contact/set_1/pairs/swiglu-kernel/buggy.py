"""Small gated MLP language-ish model with a hand-written SwiGLU kernel."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    vocab: int = 24
    dim: int = 24
    hidden: int = 48
    layers: int = 2
    context: int = 4


def _sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def swiglu_forward_kernel(a, b):
    return a * _sigmoid(a) * b


def swiglu_backward_kernel(dc, a, b):
    sig = _sigmoid(a)
    silu = a * sig
    db = dc * silu
    da = dc * (silu * (1 - sig) + sig) * b
    np.copyto(a, da)
    np.copyto(b, db)
    return a, b


class LigerSiLUMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.from_numpy(swiglu_forward_kernel(a.detach().numpy(), b.detach().numpy()))

    @staticmethod
    def backward(ctx, dc):
        a, b = ctx.saved_tensors
        da, db = swiglu_backward_kernel(dc.contiguous().numpy(), a.detach().numpy(), b.detach().numpy())
        return torch.from_numpy(da), torch.from_numpy(db)


class GatedMLP(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.norm = nn.LayerNorm(args.dim)
        self.gate_proj = nn.Linear(args.dim, args.hidden)
        self.up_proj = nn.Linear(args.dim, args.hidden)
        self.down_proj = nn.Linear(args.hidden, args.dim)

    def forward(self, x):
        h = self.norm(x)
        gate = torch.tanh(2.0 * self.gate_proj(h))
        up = torch.exp(0.5 * torch.tanh(self.up_proj(h)))
        return x + self.down_proj(LigerSiLUMul.apply(gate, up))


class NgramModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        self.mix = nn.Linear(args.dim * args.context, args.dim)
        self.blocks = nn.ModuleList(GatedMLP(args) for _ in range(args.layers))
        self.head = nn.Linear(args.dim, args.vocab)

    def forward(self, tokens):
        x = self.mix(self.embed(tokens).flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_corpus(args, n, seed):
    g = torch.Generator().manual_seed(seed)
    seq = [1, 2, 3, 5]
    noise = torch.randint(0, args.vocab, (n,), generator=g)
    flip = torch.rand(n, generator=g) < 0.05
    for i in range(n):
        nxt = (seq[-1] * 3 + seq[-3] + 7 * (seq[-2] % 2)) % args.vocab
        seq.append(int(noise[i]) if flip[i] else nxt)
    data = torch.tensor(seq)
    return data.unfold(0, args.context + 1, 1)


@torch.no_grad()
def evaluate(model, windows):
    model.eval()
    loss = F.cross_entropy(model(windows[:, :-1]), windows[:, -1]).item()
    model.train()
    return loss


def train(args, steps=250, batch=48):
    model = NgramModel(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    train_set, valid = make_corpus(args, 1500, 1), make_corpus(args, 300, 2)
    for step in range(steps):
        w = train_set[torch.randint(0, len(train_set), (batch,))]
        loss = F.cross_entropy(model(w[:, :-1]), w[:, -1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 80 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    return model, loss.item(), evaluate(model, valid)


def target(u, v):
    return LigerSiLUMul.apply(torch.tanh(2.0 * u), torch.exp(0.5 * torch.tanh(v)))


def make_inputs():
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, 4, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))


def main():
    torch.manual_seed(0)
    model, last, val = train(ModelArgs())
    print(f"validation loss {val:.4f}")
    return {"train_loss": last, "val_loss": val}


if __name__ == "__main__":
    main()
