"""Supervised fine-tuning of a tiny causal LM with prompt masking and gradient accumulation."""
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

IGNORE = -100


@dataclass
class SFTConfig:
    vocab: int = 40
    width: int = 32
    context: int = 48
    micro_batch: int = 2
    accumulation: int = 4
    updates: int = 60
    lr: float = 0.05
    seed: int = 0
    log: list = field(default_factory=list)


class TinyLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.width)
        self.pos = nn.Embedding(cfg.context, cfg.width)
        self.block = nn.TransformerEncoderLayer(cfg.width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(cfg.width)
        self.lm_head = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def forward(self, ids):
        n = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        x = self.tok(ids) + self.pos(torch.arange(n))
        return self.lm_head(self.norm(self.block(x, src_mask=mask, is_causal=True)))


def make_example(g, cfg):
    long = torch.rand((), generator=g) < 0.3
    answer = int(torch.randint(24, 32, (), generator=g)) if long else int(torch.randint(1, 4, (), generator=g))
    start = int(torch.randint(0, 20, (), generator=g))
    stride = 1 if long else 3
    prompt = torch.randint(20, 40, (6,), generator=g)
    body = (start + stride * torch.arange(answer)) % 20
    ids = torch.cat([prompt, body])
    labels = torch.cat([torch.full((6,), IGNORE), body])
    return ids, labels


def collate(examples):
    n = max(len(ids) for ids, _ in examples)
    ids = torch.stack([F.pad(i, (0, n - len(i))) for i, _ in examples])
    labels = torch.stack([F.pad(t, (0, n - len(t)), value=IGNORE) for _, t in examples])
    return {"input_ids": ids, "labels": labels}


def make_window(rng, cfg):
    return [collate([make_example(rng, cfg) for _ in range(cfg.micro_batch)]) for _ in range(cfg.accumulation)]


def shifted(model, batch):
    logits = model(batch["input_ids"])[:, :-1]
    return logits.flatten(0, 1), batch["labels"][:, 1:].flatten()


class SFTTrainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = TinyLM(cfg)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)

    def update(self, window):
        self.model.train()
        num_items = sum((b["labels"][:, 1:] != IGNORE).sum() for b in window)
        self.optimizer.zero_grad()
        for batch in window:
            logits, labels = shifted(self.model, batch)
            loss = F.cross_entropy(logits, labels, ignore_index=IGNORE) / len(window)
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return int(num_items)

    @torch.no_grad()
    def evaluate(self, batches):
        self.model.eval()
        total, count = 0.0, 0
        for batch in batches:
            logits, labels = shifted(self.model, batch)
            total += F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum").item()
            count += int((labels != IGNORE).sum())
        return total / count


def main():
    cfg = SFTConfig()
    trainer = SFTTrainer(cfg)
    rng, test_rng = torch.Generator().manual_seed(1), torch.Generator().manual_seed(10)
    held_out = make_window(test_rng, cfg) + make_window(test_rng, cfg)
    tokens = 0
    for step in range(cfg.updates):
        tokens += trainer.update(make_window(rng, cfg))
        if step % 20 == 19:
            cfg.log.append(trainer.evaluate(held_out))
            print(f"update {step + 1} tokens {tokens} eval {cfg.log[-1]:.4f}")
    return {"eval_loss": cfg.log[-1], "tokens": tokens, "trainer": trainer}


if __name__ == "__main__":
    main()
