"""Instruction tuning of a small decoder with LoRA adapters on all linear layers."""
import math
import warnings
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore", category=UserWarning)


@dataclass
class Config:
    vocab: int = 32
    dim: int = 32
    heads: int = 4
    layers: int = 3
    ctx: int = 16
    rank: int = 4
    alpha: float = 8.0
    lr: float = 1e-2
    batch: int = 16
    steps: int = 60
    warmup: int = 10
    gradient_checkpointing: bool = True
    seed: int = 0


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.t() @ self.lora_B.t()) * self.scale


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        self.up = nn.Linear(cfg.dim, 4 * cfg.dim)
        self.down = nn.Linear(4 * cfg.dim, cfg.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.gradient_checkpointing = cfg.gradient_checkpointing
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.ctx, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)
        self.lm_head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.lm_head(self.norm(x))


def inject_lora(model, rank, alpha):
    for p in model.parameters():
        p.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank, alpha))
    return [p for p in model.parameters() if p.requires_grad]


def make_batch(cfg, generator):
    """Prompt of random tokens, then the same tokens in reverse order."""
    half = cfg.ctx // 2
    prompt = torch.randint(2, cfg.vocab, (cfg.batch, half), generator=generator)
    ids = torch.cat([prompt, prompt.flip(1)], 1)
    labels = ids.clone()
    labels[:, :half] = -100
    return ids[:, :-1], labels[:, 1:]


def evaluate(model, cfg):
    model.eval()
    generator = torch.Generator().manual_seed(999)
    with torch.no_grad():
        ids, labels = make_batch(cfg, generator)
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100)
    model.train()
    return loss.item()


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    model = Decoder(cfg)
    trainable = inject_lora(model, cfg.rank, cfg.alpha)
    total = sum(p.numel() for p in model.parameters())
    print(f"trainable params: {sum(p.numel() for p in trainable)} of {total}")
    optimizer = torch.optim.AdamW(trainable, lr=cfg.lr, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / cfg.warmup))
    generator = torch.Generator().manual_seed(cfg.seed)
    for step in range(cfg.steps):
        ids, labels = make_batch(cfg, generator)
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    val = evaluate(model, cfg)
    print(f"eval loss {val:.4f}")
    return {"model": model, "val": val}


if __name__ == "__main__":
    main()
