"""Accumulation over micro batches of variable length: summed losses over the tokens of the whole window."""
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0


@dataclass
class Config:
    vocab: int = 18
    dim: int = 24
    micro_batch: int = 3
    accumulate: int = 4
    batches_per_epoch: int = 10
    epochs: int = 4
    lr: float = 5e-3
    max_norm: float = 1.0
    seed: int = 6


class Tagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=PAD)
        self.rnn = nn.GRU(cfg.dim, cfg.dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * cfg.dim, cfg.vocab)

    def forward(self, ids, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, batch_first=True,
                                                   enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(hidden)


def loader(cfg, seed, count):
    gen = torch.Generator().manual_seed(seed)
    for _ in range(count):
        lengths = torch.randint(2, 15, (cfg.micro_batch,), generator=gen)
        ids = torch.zeros(cfg.micro_batch, int(lengths.max()), dtype=torch.long)
        for row, n in enumerate(lengths.tolist()):
            ids[row, :n] = torch.randint(1, cfg.vocab, (n,), generator=gen)
        tags = torch.where(ids == PAD, PAD, (ids * 5) % (cfg.vocab - 1) + 1)
        yield ids, lengths, tags


def windows(batches, size):
    batches = iter(batches)
    while chunk := list(islice(batches, size)):
        yield chunk


def token_loss(model, ids, lengths, tags):
    logits = model(ids, lengths)
    return F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=PAD, reduction="sum")


@torch.no_grad()
def evaluate(model, cfg):
    model.eval()
    total = count = 0
    for ids, lengths, tags in loader(cfg, 99, 5):
        total += token_loss(model, ids, lengths, tags).item()
        count += int((tags != PAD).sum())
    model.train()
    return total / count


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = Tagger(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    updates_per_epoch = -(-cfg.batches_per_epoch // cfg.accumulate)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=cfg.lr,
                                                    total_steps=cfg.epochs * updates_per_epoch)
    for epoch in range(cfg.epochs):
        for window in windows(loader(cfg, epoch, cfg.batches_per_epoch), cfg.accumulate):
            tokens = sum(int((tags != PAD).sum()) for _, _, tags in window)
            logged = 0.0
            for batch in window:
                loss = token_loss(model, *batch) / tokens
                loss.backward()
                logged += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"epoch {epoch} loss {logged:.4f} valid {evaluate(model, cfg):.4f}")
    return evaluate(model, cfg)


if __name__ == "__main__":
    main()
