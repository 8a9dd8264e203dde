"""LoRA fine-tuning with activation checkpointing, tied head, early stopping and merge at the end."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    vocab: int = 20
    dim: int = 24
    layers: int = 2
    rank: int = 4
    lr: float = 2e-2
    steps: int = 80
    eval_every: int = 10
    patience: int = 3
    seed: int = 0


class LoRALinear(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features ** -0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.merged = False

    def forward(self, x):
        out = self.base(x)
        return out if self.merged else out + 2.0 * (x @ self.lora_A.t()) @ self.lora_B.t()

    @torch.no_grad()
    def merge(self):
        self.base.weight.add_(2.0 * self.lora_B @ self.lora_A)
        self.merged = True


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        h = self.norm(x)
        past = h.cumsum(1) / torch.arange(1, h.size(1) + 1).view(1, -1, 1)
        return x + self.down(F.gelu(self.up(h + self.mix(past))))


class LM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg.dim) for _ in range(cfg.layers))
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(x)


def batch(cfg, g):
    ids = torch.randint(cfg.vocab // 2, (16, 9), generator=g)
    ids[:, 1:] = (ids[:, :1] + 3 * torch.arange(1, 9)) % cfg.vocab
    return ids[:, :-1], ids[:, 1:]


@torch.no_grad()
def evaluate(model, cfg):
    model.eval()
    x, y = batch(cfg, torch.Generator().manual_seed(9))
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    model.train()
    return loss


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    model = LM(cfg).requires_grad_(False)
    for block in model.blocks:
        for name in ("mix", "up", "down"):
            setattr(block, name, LoRALinear(getattr(block, name), cfg.rank))
    adapters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(adapters.values(), lr=cfg.lr, weight_decay=0.0)
    g = torch.Generator().manual_seed(1)
    best, best_state, bad = float("inf"), None, 0
    for step in range(1, cfg.steps + 1):
        x, y = batch(cfg, g)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % cfg.eval_every == 0:
            val = evaluate(model, cfg)
            if val < best:
                best, bad = val, 0
                best_state = copy.deepcopy({n: p.detach() for n, p in adapters.items()})
            else:
                bad += 1
                if bad >= cfg.patience:
                    break
    model.load_state_dict(best_state, strict=False)
    for module in list(model.modules()):
        if isinstance(module, LoRALinear):
            module.merge()
    print(f"best {best:.4f} merged {evaluate(model, cfg):.4f}")
    return {"best": best, "merged": evaluate(model, cfg)}


if __name__ == "__main__":
    main()
