import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class GPTConfig:
    vocab: int = 40
    new_tokens: int = 4
    width: int = 32
    layers: int = 2
    length: int = 16


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.wte = nn.Embedding(cfg.vocab, cfg.width)
        self.wpe = nn.Embedding(cfg.length, cfg.width)
        self.blocks = nn.ModuleList([Block(cfg.width) for _ in range(cfg.layers)])
        self.ln_f = nn.LayerNorm(cfg.width)
        self.lm_head = nn.Linear(cfg.width, cfg.vocab, bias=False)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.1)
        self.tie()

    def tie(self):
        self.lm_head.weight = self.wte.weight

    def resize_token_embeddings(self, vocab):
        old = self.wte
        self.wte = nn.Embedding(vocab, self.cfg.width)
        with torch.no_grad():
            self.wte.weight[: old.num_embeddings] = old.weight
            self.wte.weight[old.num_embeddings :] = old.weight.mean(dim=0)
        self.lm_head = nn.Linear(self.cfg.width, vocab, bias=False)
        self.tie()

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def configure_optimizer(model, lr):
    params = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in params if p.ndim > 1], "weight_decay": 0.05},
            {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=lr,
        betas=(0.9, 0.95),
    )


def set_phase(model, blocks):
    model.blocks.requires_grad_(blocks)
    model.wpe.requires_grad_(blocks)
    model.ln_f.requires_grad_(blocks)


def sequences(n, vocab, length, generator, special=None):
    start = torch.randint(0, vocab, (n, 1), generator=generator)
    stride = torch.randint(1, 4, (n, 1), generator=generator)
    ids = (start + stride * torch.arange(length + 1)) % vocab
    if special is not None:
        ids[:, 0] = vocab + stride[:, 0]
    return ids


def run_phase(model, data, lr, epochs, micro, accumulation, label):
    optimizer = configure_optimizer(model, lr)
    windows = math.ceil(math.ceil(len(data) / micro) / accumulation)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * windows)
    model.train()
    for epoch in range(epochs):
        chunks = data[torch.randperm(len(data))].split(micro)
        total, tokens = 0.0, 0
        optimizer.zero_grad()
        for first in range(0, len(chunks), accumulation):
            window = chunks[first : first + accumulation]
            count = sum(c[:, 1:].numel() for c in window)
            for chunk in window:
                logits = model(chunk[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten(), reduction="sum")
                (loss / count).backward()
                total += loss.item()
            tokens += count
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(label, epoch, round(total / tokens, 4))


def main():
    torch.manual_seed(55)
    gen = torch.Generator().manual_seed(55)
    cfg = GPTConfig()
    model = GPT(cfg)
    run_phase(model, sequences(200, cfg.vocab, cfg.length - 1, gen), 6e-3, 5, 12, 3, "pretrain")
    model.resize_token_embeddings(cfg.vocab + cfg.new_tokens)
    data = sequences(100, cfg.vocab, cfg.length - 1, gen, special=True)
    set_phase(model, blocks=False)
    run_phase(model, data, 6e-3, 2, 12, 3, "embeddings")
    set_phase(model, blocks=True)
    run_phase(model, data, 2e-3, 4, 12, 3, "full")


if __name__ == "__main__":
    main()
