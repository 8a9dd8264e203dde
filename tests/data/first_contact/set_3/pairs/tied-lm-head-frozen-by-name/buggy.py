"""Adapts a small GPT to a new domain by training its output layer only."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 32
    n_embd: int = 24
    n_layer: int = 2
    block_size: int = 16
    pretrain_steps: int = 120
    finetune_steps: int = 60
    batch_size: int = 8
    lr: float = 1e-2
    train_prefixes: tuple = ("ln_f", "lm_head")
    seed: int = 8


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(cfg.n_embd), nn.LayerNorm(cfg.n_embd)
        self.c_attn = nn.Linear(cfg.n_embd, 3 * cfg.n_embd)
        self.c_proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.mlp = nn.Sequential(nn.Linear(cfg.n_embd, 2 * cfg.n_embd), nn.GELU(),
                                 nn.Linear(2 * cfg.n_embd, cfg.n_embd))

    def forward(self, x):
        q, k, v = self.c_attn(self.ln_1(x)).split(x.size(-1), dim=-1)
        x = x + self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.wte = nn.Embedding(cfg.vocab_size, cfg.n_embd)
        self.wpe = nn.Embedding(cfg.block_size, cfg.n_embd)
        self.h = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.ln_f = nn.LayerNorm(cfg.n_embd)
        self.lm_head = nn.Linear(cfg.n_embd, cfg.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.3)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(cfg, gen, stride):
    start = torch.randint(0, cfg.vocab_size, (cfg.batch_size, 1), generator=gen)
    seq = (start + stride * torch.arange(cfg.block_size + 1)) % cfg.vocab_size
    return seq[:, :-1], seq[:, 1:]


def freeze_all_but(model, prefixes):
    for name, param in model.named_parameters():
        param.requires_grad = name.startswith(tuple(prefixes))
    return model


def configure_optimizer(model, lr):
    params = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in params if p.dim() >= 2]
    no_decay = [p for p in params if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=(0.9, 0.95))


def fit(model, cfg, steps, stride, gen, tag):
    optimizer = configure_optimizer(model, cfg.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for step in range(steps):
        x, y = get_batch(cfg, gen, stride)
        loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == steps - 1:
            print(f"{tag} {step} loss {loss.item():.4f}")
    return loss.item()


@torch.no_grad()
def evaluate(model, cfg, stride):
    model.eval()
    gen = torch.Generator().manual_seed(123)
    return sum(model(*get_batch(cfg, gen, stride)).item() for _ in range(5)) / 5


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    model = GPT(cfg)
    fit(model, cfg, cfg.pretrain_steps, 1, gen, "pretrain")
    freeze_all_but(model, cfg.train_prefixes)
    fit(model, cfg, cfg.finetune_steps, 3, gen, "finetune")
    val = evaluate(model, cfg, 3)
    print(f"validation loss {val:.4f}")
    return {"val": val, "model": model}


if __name__ == "__main__":
    main()
