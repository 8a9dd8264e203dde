"""Tagger with gradient accumulation by tokens: sums are accumulated and the gradients are divided once per step."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@dataclass
class Config:
    vocab: int = 20
    tags: int = 4
    dim: int = 16
    samples: int = 90
    micro: int = 4
    accumulate: int = 4
    epochs: int = 5
    lr: float = 1e-2
    clip: float = 1.0
    seed: int = 0


class Tagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=0)
        self.rnn = nn.LSTM(cfg.dim, cfg.dim, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * cfg.dim, cfg.tags)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=ids.size(1))
        return self.out(h)


def make(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        length = int(torch.randint(1, 25, (1,), generator=g))
        ids = torch.randint(1, cfg.vocab, (length,), generator=g)
        rows.append((ids, (ids + torch.roll(ids, 1)) % cfg.tags))
    return rows


def collate(rows):
    ids = nn.utils.rnn.pad_sequence([r[0] for r in rows], batch_first=True)
    tags = nn.utils.rnn.pad_sequence([r[1] for r in rows], batch_first=True, padding_value=-100)
    return ids, tags, torch.tensor([len(r[0]) for r in rows])


def loss_sum(model, batch):
    ids, tags, lengths = batch
    return F.cross_entropy(model(ids, lengths).flatten(0, 1), tags.flatten(), ignore_index=-100, reduction="sum")


def apply_gradients(model, optimizer, tokens, cfg):
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(tokens)
    norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
    if torch.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm.item()


@torch.no_grad()
def evaluate(model, rows):
    model.eval()
    batch = collate(rows)
    value = loss_sum(model, batch).item() / int(batch[2].sum())
    model.train()
    return value


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    train, val = make(cfg, cfg.samples, 1), make(cfg, 40, 2)
    model = Tagger(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    for epoch in range(cfg.epochs):
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch)).tolist()
        micro = [order[i: i + cfg.micro] for i in range(0, len(order), cfg.micro)]
        tokens = pending = 0
        running, seen = 0.0, 0
        for i, idx in enumerate(micro):
            batch = collate([train[j] for j in idx])
            loss = loss_sum(model, batch)
            loss.backward()
            tokens += int(batch[2].sum())
            pending += 1
            running += loss.item()
            if pending == cfg.accumulate or i == len(micro) - 1:
                apply_gradients(model, optimizer, tokens, cfg)
                seen += tokens
                tokens = pending = 0
        if epoch % 2 == 0:
            print(f"epoch {epoch} loss {running / seen:.4f} val {evaluate(model, val):.4f}")
    return {"val": evaluate(model, val)}


if __name__ == "__main__":
    main()
