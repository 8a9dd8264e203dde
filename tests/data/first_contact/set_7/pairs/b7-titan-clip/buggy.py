import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 48
    n_layers: int = 2
    n_heads: int = 4
    vocab_size: int = 64
    max_seq_len: int = 24


@dataclass
class JobConfig:
    steps: int = 60
    batch_size: int = 8
    lr: float = 0.25
    warmup_steps: int = 5
    max_norm: float = 0.25
    seed: int = 7


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_heads = args.n_heads
        self.head_dim = args.dim // args.n_heads
        self.wqkv = nn.Linear(args.dim, 3 * args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.wqkv(x).view(b, s, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(b, s, d))


class TransformerBlock(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.attention_norm = nn.RMSNorm(args.dim)
        self.attention = Attention(args)
        self.ffn_norm = nn.RMSNorm(args.dim)
        self.feed_forward = nn.Sequential(
            nn.Linear(args.dim, 4 * args.dim), nn.SiLU(), nn.Linear(4 * args.dim, args.dim)
        )

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.pos_embeddings = nn.Embedding(args.max_seq_len, args.dim)
        self.layers = nn.ModuleList(TransformerBlock(args) for _ in range(args.n_layers))
        self.norm = nn.RMSNorm(args.dim)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)

    def forward(self, tokens):
        pos = torch.arange(tokens.size(1), device=tokens.device)
        h = self.tok_embeddings(tokens) + self.pos_embeddings(pos)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    grads = [p.grad for p in parameters if p.grad is not None]
    if len(grads) == 0:
        return torch.tensor(0.0)
    norms = torch.stack([torch.linalg.vector_norm(g, norm_type) for g in grads])
    total_norm = torch.linalg.vector_norm(norms, norm_type)
    clip_coef = torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
    for p in parameters:
        if p.grad is not None:
            p.grad.mul_(clip_coef)
    return total_norm


def build_lr_scheduler(optimizer, job: JobConfig):
    def fn(step):
        if step < job.warmup_steps:
            return (step + 1) / job.warmup_steps
        progress = (step - job.warmup_steps) / max(1, job.steps - job.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * progress))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, fn)


def data_iterator(args: ModelArgs, job: JobConfig):
    gen = torch.Generator().manual_seed(job.seed)
    while True:
        start = torch.randint(0, args.vocab_size, (job.batch_size, 1), generator=gen)
        stride = torch.randint(1, 4, (job.batch_size, 1), generator=gen)
        seq = (start + stride * torch.arange(args.max_seq_len + 1)) % args.vocab_size
        yield seq[:, :-1], seq[:, 1:]


def train_step(model, optimizer, scheduler, batch, job: JobConfig):
    tokens, labels = batch
    optimizer.zero_grad()
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    grad_norm = clip_grad_norm_(model.parameters(), job.max_norm)
    optimizer.step()
    scheduler.step()
    return loss.item(), grad_norm.item()


def main():
    job, args = JobConfig(), ModelArgs()
    torch.manual_seed(job.seed)
    model = Transformer(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr, momentum=0.9)
    scheduler = build_lr_scheduler(optimizer, job)
    batches = data_iterator(args, job)
    for step in range(1, job.steps + 1):
        loss, grad_norm = train_step(model, optimizer, scheduler, next(batches), job)
        if step % 10 == 0:
            print(f"step: {step:3d}  loss: {loss:7.4f}  grad_norm: {grad_norm:7.3f}")


if __name__ == "__main__":
    main()
