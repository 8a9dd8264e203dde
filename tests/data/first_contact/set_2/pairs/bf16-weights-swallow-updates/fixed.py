"""Full fine-tuning of a small language model in bfloat16."""
import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class FinetuneConfig:
    vocab: int = 32
    width: int = 32
    length: int = 16
    batch_size: int = 16
    pretrain_steps: int = 80
    steps: int = 90
    learning_rate: float = 1e-4
    warmup: int = 10
    weight_decay: float = 0.01
    param_dtype: torch.dtype = torch.float32
    amp_dtype: torch.dtype = torch.bfloat16
    seed: int = 31


class CausalLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.width)
        self.rnn = nn.GRU(cfg.width, cfg.width, batch_first=True)
        self.norm = nn.LayerNorm(cfg.width)
        self.lm_head = nn.Linear(cfg.width, cfg.vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.lm_head(self.norm(h))

    def loss(self, ids):
        logits = self(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


class MarkovText:
    def __init__(self, cfg, seed, base=None):
        g = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(cfg.vocab, cfg.vocab, generator=g)
        if base is not None:
            logits = 0.8 * base.logits + 0.6 * logits
        self.logits, self.cfg = logits, cfg
        self.probs = logits.softmax(-1)
        self.g = torch.Generator().manual_seed(seed + 1)

    def batch(self):
        ids = torch.randint(self.cfg.vocab, (self.cfg.batch_size, 1), generator=self.g)
        for _ in range(self.cfg.length):
            ids = torch.cat([ids, torch.multinomial(self.probs[ids[:, -1]], 1, generator=self.g)], 1)
        return ids


def pretrain(model, text, cfg):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(cfg.pretrain_steps):
        loss = model.loss(text.batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


class Finetuner:
    def __init__(self, model, cfg):
        self.cfg = cfg
        self.model = copy.deepcopy(model).to(cfg.param_dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.learning_rate, weight_decay=cfg.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / cfg.warmup))

    def train_step(self, ids):
        with torch.autocast("cpu", dtype=self.cfg.amp_dtype):
            loss = self.model.loss(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    @torch.no_grad()
    def evaluate(self, batches):
        self.model.eval()
        with torch.autocast("cpu", dtype=self.cfg.amp_dtype):
            losses = [self.model.loss(ids).item() for ids in batches]
        self.model.train()
        return sum(losses) / len(losses)


def main():
    cfg = FinetuneConfig()
    torch.manual_seed(cfg.seed)
    general = MarkovText(cfg, 1)
    domain = MarkovText(cfg, 5, base=general)
    model = CausalLM(cfg)
    print(f"pretrained {pretrain(model, general, cfg):.4f}")
    tuner = Finetuner(model, cfg)
    held_out = [domain.batch() for _ in range(6)]
    first = tuner.evaluate(held_out)
    for step in range(cfg.steps):
        loss = tuner.train_step(domain.batch())
        if step % 30 == 29:
            print(f"step {step + 1} loss {loss:.4f}")
    last = tuner.evaluate(held_out)
    moved = [(a.float() != b.to(cfg.param_dtype).float()).float().mean().item()
             for a, b in zip(tuner.model.parameters(), model.parameters())]
    print(f"held out {first:.4f} -> {last:.4f}")
    return {"first": first, "last": last, "moved": sum(moved) / len(moved)}


if __name__ == "__main__":
    main()
