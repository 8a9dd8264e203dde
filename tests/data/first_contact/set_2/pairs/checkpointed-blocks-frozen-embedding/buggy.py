"""LoRA fine-tuning of a small decoder with activation checkpointing."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    vocab: int = 30
    width: int = 32
    layers: int = 2
    rank: int = 4
    classes: int = 5
    length: int = 12
    batch: int = 16
    steps: int = 150
    lr: float = 1e-2
    gradient_checkpointing: bool = True
    seed: int = 23


class LoRALinear(nn.Linear):
    def add_adapter(self, rank, alpha=16.0):
        self.lora_A = nn.Parameter(torch.randn(rank, self.in_features) / self.in_features ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(self.out_features, rank))
        self.scaling = alpha / rank

    def forward(self, x):
        y = super().forward(x)
        if hasattr(self, "lora_A"):
            y = y + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)
        return y


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = LoRALinear(width, 3 * width), LoRALinear(width, width)
        self.fc1, self.fc2 = LoRALinear(width, 2 * width), LoRALinear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.gradient_checkpointing = cfg.gradient_checkpointing
        self.embed = nn.Embedding(cfg.vocab, cfg.width)
        self.blocks = nn.ModuleList(Block(cfg.width) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.width)
        self.score = nn.Linear(cfg.width, cfg.classes)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = block(x)
        return self.score(self.norm(x).mean(1))


def prepare_for_lora(model, rank):
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, LoRALinear):
            module.add_adapter(rank)
    model.score.requires_grad_(True)
    return [p for p in model.parameters() if p.requires_grad]


def make_batch(cfg, g):
    ids = torch.randint(cfg.vocab, (cfg.batch, cfg.length), generator=g)
    counts = F.one_hot(ids % cfg.classes, cfg.classes).sum(1)
    return ids, counts.argmax(1)


@torch.no_grad()
def evaluate(model, cfg):
    model.eval()
    g = torch.Generator().manual_seed(1234)
    accuracy = [(model(ids).argmax(-1) == y).float().mean() for ids, y in (make_batch(cfg, g) for _ in range(16))]
    model.train()
    return torch.stack(accuracy).mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = Model(cfg)
    trainable = prepare_for_lora(model, cfg.rank)
    optimizer = torch.optim.AdamW(trainable, lr=cfg.lr, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, cfg.lr, total_steps=cfg.steps)
    g = torch.Generator().manual_seed(cfg.seed)
    model.train()
    for step in range(cfg.steps):
        ids, y = make_batch(cfg, g)
        loss = F.cross_entropy(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        scheduler.step()
        if step % 50 == 49:
            print(f"step {step + 1} loss {loss.item():.4f} acc {evaluate(model, cfg):.3f}")
    return {"accuracy": evaluate(model, cfg), "model": model}


if __name__ == "__main__":
    main()
