"""Character language model with a warm-up schedule and separate groups for decay."""
from typing import List

import torch
from torch import nn
from torch.nn import functional as F

TEXT = "the quick brown fox jumps over the lazy dog while the band plays on and on near the river bank. " * 20


class LinearWarmUp:
    def __init__(self, optimizer: torch.optim.Optimizer, warmup_epochs: int, final_lr: float, total: int):
        self.optimizer = optimizer
        self.warmup_epochs = warmup_epochs
        self.final_lr = final_lr
        self.total = total
        self.last_epoch = 0
        self._apply(self.get_lr())

    def warmup_multiplier(self) -> float:
        if self.warmup_epochs == 0 or self.last_epoch >= self.warmup_epochs:
            return 1.0
        return (self.last_epoch + 1) / (self.warmup_epochs + 1)

    def decay_multiplier(self) -> float:
        remaining = max(self.total - self.last_epoch, 0) / max(self.total - self.warmup_epochs, 1)
        return min(1.0, remaining)

    def get_lr(self) -> List[float]:
        return [self.final_lr * self.warmup_multiplier() * self.decay_multiplier()]

    def _apply(self, values: List[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, values):
            group["lr"] = lr

    def step(self) -> None:
        self.last_epoch += 1
        self._apply(self.get_lr())

    def state_dict(self):
        return {"last_epoch": self.last_epoch}


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class CharModel(nn.Module):
    def __init__(self, vocab, dim=32, context=24, layers=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList([Block(dim, 4) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)
        self.register_buffer("mask", torch.triu(torch.ones(context, context, dtype=torch.bool), 1), persistent=False)

    def forward(self, idx):
        t = idx.shape[1]
        x = self.tok(idx) + self.pos(torch.arange(t))
        for block in self.blocks:
            x = block(x, self.mask[:t, :t])
        return self.head(self.ln(x))


def configure_optimizers(model, weight_decay, lr):
    plain, decayed = [], []
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            if name.endswith("bias") or isinstance(module, (nn.LayerNorm, nn.Embedding)):
                plain.append(p)
            else:
                decayed.append(p)
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": decayed, "weight_decay": weight_decay}]
    return torch.optim.AdamW(groups, lr=lr)


def main():
    torch.manual_seed(21)
    chars = sorted(set(TEXT))
    data = torch.tensor([chars.index(c) for c in TEXT])
    model = CharModel(len(chars))
    total, context = 120, 24
    optimizer = configure_optimizers(model, weight_decay=0.1, lr=1e-2)
    scheduler = LinearWarmUp(optimizer, warmup_epochs=20, final_lr=1e-2, total=total)
    rates = []
    for step in range(total):
        start = torch.randint(0, len(data) - context - 1, (16,))
        window = torch.stack([data[s:s + context + 1] for s in start])
        logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        rates.append([g["lr"] for g in optimizer.param_groups])
        if step % 30 == 29:
            print(f"step {step + 1} loss {loss.item():.4f}")
    return model, rates


if __name__ == "__main__":
    main()
