"""Small transformer with response dropout and activation checkpointing."""
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class ModelConfig:
    vocab: int = 12
    dim: int = 24
    heads: int = 2
    layers: int = 2
    length: int = 6
    residual_dropout: float = 0.25
    activation_checkpointing: bool = True


@dataclass
class TrainConfig:
    steps: int = 150
    batch_size: int = 24
    lr: float = 8e-3
    clip: float = 1.0
    eval_every: int = 40
    seed: int = 13


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim))
        self.dropout = nn.Dropout(cfg.residual_dropout)

    def attention(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.position = nn.Parameter(0.02 * torch.randn(cfg.length, cfg.dim))
        self.blocks = nn.ModuleList([Block(cfg) for _ in range(cfg.layers)])
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab)
        self.run = None
        if cfg.activation_checkpointing:
            self.apply_activation_checkpointing()

    def apply_activation_checkpointing(self):
        self.run = partial(checkpoint, use_reentrant=False, preserve_rng_state=True)

    def forward(self, tokens):
        h = self.embed(tokens) + self.position
        for block in self.blocks:
            if self.run is not None and self.training:
                h = self.run(block, h)
            else:
                h = block(h)
        return self.head(self.norm(h))


def sample(cfg, n, generator):
    tokens = torch.randint(0, cfg.vocab, (n, cfg.length), generator=generator)
    return tokens, (tokens + 1).roll(1, dims=1) % cfg.vocab


class Trainer:
    def __init__(self, model_cfg, cfg):
        self.model_cfg, self.cfg = model_cfg, cfg
        self.model = Transformer(model_cfg)
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01},
                                            {"params": rest, "weight_decay": 0.0}], lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, cfg.lr, total_steps=cfg.steps)

    def train_step(self, tokens, target):
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(tokens).flatten(0, 1), target.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, tokens, target):
        self.model.eval()
        return F.cross_entropy(self.model(tokens).flatten(0, 1), target.flatten()).item()


def main():
    model_cfg, cfg = ModelConfig(), TrainConfig()
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    trainer = Trainer(model_cfg, cfg)
    held_out = sample(model_cfg, 128, generator)
    for step in range(cfg.steps):
        loss = trainer.train_step(*sample(model_cfg, cfg.batch_size, generator))
        if step % cfg.eval_every == 0:
            print(f"step {step} train {loss:.4f} valid {trainer.evaluate(*held_out):.4f}")
    valid = trainer.evaluate(*held_out)
    print(f"valid {valid:.4f}")
    return {"train": loss, "valid": valid}


if __name__ == "__main__":
    main()
