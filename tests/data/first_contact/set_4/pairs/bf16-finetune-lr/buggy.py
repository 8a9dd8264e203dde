"""Pretrain a small transformer classifier, save it, load it again and fine-tune on a related task in bf16."""
import io
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 20
    ctx: int = 10
    dim: int = 24
    batch: int = 32
    pretrain_steps: int = 80
    pretrain_lr: float = 3e-3
    finetune_steps: int = 150
    finetune_lr: float = 5e-5
    weight_decay: float = 0.0
    dtype: torch.dtype = torch.bfloat16
    seed: int = 0


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Parameter(torch.randn(cfg.ctx, cfg.dim) * 0.1)
        self.norm1 = nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.norm2 = nn.LayerNorm(cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 2 * cfg.dim), nn.GELU(), nn.Linear(2 * cfg.dim, cfg.dim))
        self.head = nn.Linear(cfg.dim, 2)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v)
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(1))


def make_batch(cfg, generator, threshold):
    """Does the row hold more small tokens than large ones? The border differs between the tasks."""
    ids = torch.randint(cfg.vocab, (cfg.batch, cfg.ctx), generator=generator)
    labels = ((ids < threshold).sum(1) > cfg.ctx // 2).long()
    return ids, labels


def save_pretrained(model):
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


def from_pretrained(cfg, blob):
    model = Encoder(cfg)
    model.load_state_dict(torch.load(io.BytesIO(blob)))
    return model


def pretrain(cfg):
    model = Encoder(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.pretrain_lr)
    generator = torch.Generator().manual_seed(1)
    for _ in range(cfg.pretrain_steps):
        ids, labels = make_batch(cfg, generator, threshold=8)
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"pretrained, loss {loss.item():.4f}")
    return save_pretrained(model)


@torch.no_grad()
def evaluate(model, cfg, threshold):
    model.eval()
    generator = torch.Generator().manual_seed(42)
    losses = []
    for _ in range(8):
        ids, labels = make_batch(cfg, generator, threshold)
        losses.append(F.cross_entropy(model(ids).float(), labels).item())
    model.train()
    return sum(losses) / len(losses)


def finetune(cfg, blob):
    model = from_pretrained(cfg, blob)
    model = model.to(cfg.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.finetune_lr, weight_decay=cfg.weight_decay)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, cfg.finetune_steps)
    generator = torch.Generator().manual_seed(2)
    print(f"before finetuning {evaluate(model, cfg, 12):.4f}")
    for step in range(cfg.finetune_steps):
        ids, labels = make_batch(cfg, generator, threshold=12)
        with torch.autocast("cpu", dtype=cfg.dtype):
            logits = model(ids)
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 50 == 49:
            print(f"step {step} loss {loss.item():.4f}")
    return model


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    blob = pretrain(cfg)
    model = finetune(cfg, blob)
    val = evaluate(model, cfg, 12)
    print(f"after finetuning {val:.4f}")
    return {"model": model, "val": val, "blob": blob}


if __name__ == "__main__":
    main()
