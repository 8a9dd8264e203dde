"""Training of a draft head with micro-batches: several of them make one update."""
from __future__ import annotations

import argparse

import torch
import torch.nn as nn


class DraftHead(nn.Module):
    def __init__(self, hidden: int, vocab: int):
        super().__init__()
        self.fc = nn.Linear(2 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, state, embedding):
        h = torch.cat([state, embedding], dim=-1)
        return self.lm_head(self.norm(torch.nn.functional.silu(self.fc(h))))


class MicroBatches:
    """A fixed list of micro-batches, in a new order each epoch."""

    def __init__(self, count, size, hidden, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        rule = torch.randn(2 * hidden, vocab, generator=g)
        self.items = []
        for _ in range(count):
            s, e = torch.randn(size, hidden, generator=g), torch.randn(size, hidden, generator=g)
            self.items.append((s, e, (torch.cat([s, e], -1) @ rule).argmax(-1)))
        self.order = torch.Generator().manual_seed(seed + 1)

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        for i in torch.randperm(len(self.items), generator=self.order).tolist():
            yield self.items[i]


class Recipe:
    def __init__(self, args):
        self.args = args
        self.model = DraftHead(args.hidden, args.vocab)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.global_step = 0

    def _apply_update(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.global_step += 1

    def run_epoch(self, loader):
        accum = self.args.grad_accumulation_steps
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        pending, total = 0, 0.0
        for state, embedding, target in loader:
            logits = self.model(state, embedding)
            loss = nn.functional.cross_entropy(logits, target)
            (loss / accum).backward()
            total += loss.item()
            pending += 1
            if pending == accum:
                self._apply_update()
                pending = 0
        if pending:
            for p in self.model.parameters():
                p.grad.mul_(accum / pending)
            self._apply_update()
        return total / len(loader)


def parse_args(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=9)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--grad-accumulation-steps", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    return parser.parse_args([] if argv is None else argv)


def main():
    args = parse_args()
    torch.manual_seed(21)
    loader = MicroBatches(count=14, size=16, hidden=args.hidden, vocab=args.vocab, seed=4)
    recipe = Recipe(args)
    for epoch in range(args.epochs):
        loss = recipe.run_epoch(loader)
        print(f"epoch {epoch} step {recipe.global_step} loss {loss:.4f}")
    return recipe


if __name__ == "__main__":
    main()
