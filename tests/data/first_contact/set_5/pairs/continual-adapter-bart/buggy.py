"""Fine-tuning a frozen attention block on a new task through low-rank adapters on q and v."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class AdapterConfig:
    r: int = 4
    alpha: int = 8
    dropout: float = 0.0


class LoRALayer(nn.Module):
    def __init__(self, in_features, out_features, cfg: AdapterConfig):
        super().__init__()
        self.lora_A = nn.Parameter(torch.zeros((in_features, cfg.r)))
        self.lora_B = nn.Parameter(torch.zeros((cfg.r, out_features)))
        self.scaling = cfg.alpha / cfg.r
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x):
        return (self.dropout(x) @ self.lora_A @ self.lora_B) * self.scaling


class Attention(nn.Module):
    def __init__(self, dim, heads, cfg):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.lora_q = LoRALayer(dim, dim, cfg)
        self.lora_v = LoRALayer(dim, dim, cfg)

    def _split(self, x):
        b, t, _ = x.shape
        return x.view(b, t, self.heads, self.d).transpose(1, 2)

    def forward(self, x):
        q = self._split(self.q(x) + self.lora_q(x))
        k = self._split(self.k(x))
        v = self._split(self.v(x) + self.lora_v(x))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.o(out.transpose(1, 2).reshape(x.shape))


class Encoder(nn.Module):
    def __init__(self, vocab, dim, layers, cfg):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.attn = nn.ModuleList(Attention(dim, 2, cfg) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        h = self.embed(ids)
        for attn, norm in zip(self.attn, self.norm):
            h = h + attn(norm(h))
        return self.lm_head(h)


def mark_trainable(model):
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name or "lm_head" in name)
    return [p for p in model.parameters() if p.requires_grad]


def shifted_copy_task(batch, length, vocab, generator):
    """The label of every position is the token that occurs most in the sequence."""
    ids = torch.randint(vocab, (batch, length), generator=generator)
    top = F.one_hot(ids, vocab).sum(1).argmax(1, keepdim=True)
    return ids, top.expand(batch, length)


def fit(model, steps, vocab, lr):
    params = mark_trainable(model)
    optimizer = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / steps)))
    generator = torch.Generator().manual_seed(11)
    losses = []
    for step in range(steps):
        ids, labels = shifted_copy_task(32, 10, vocab, generator)
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def main():
    torch.manual_seed(5)
    model = Encoder(vocab=8, dim=32, layers=2, cfg=AdapterConfig())
    losses = fit(model, steps=150, vocab=8, lr=1e-2)
    print(f"first 10 steps {sum(losses[:10]) / 10:.4f}   last 10 steps {sum(losses[-10:]) / 10:.4f}")
    return model, losses


if __name__ == "__main__":
    main()
