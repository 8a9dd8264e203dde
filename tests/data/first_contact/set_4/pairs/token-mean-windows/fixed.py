"""SFT of a small recurrent LM on completions of very different lengths, with gradient accumulation."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

IGNORE = -100


@dataclass
class SFTConfig:
    vocab: int = 24
    dim: int = 32
    samples: int = 96
    per_device_batch_size: int = 2
    gradient_accumulation_steps: int = 8
    epochs: int = 4
    lr: float = 0.5
    max_grad_norm: float = 10.0
    seed: int = 0


class LM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.rnn = nn.GRU(cfg.dim, cfg.dim, batch_first=True)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


def build_dataset(cfg):
    """Short answers repeat one token, long answers count upwards."""
    generator = torch.Generator().manual_seed(cfg.seed)
    data = []
    for i in range(cfg.samples):
        start = int(torch.randint(2, cfg.vocab, (1,), generator=generator))
        if i % 4:
            answer = [start] * int(torch.randint(1, 4, (1,), generator=generator))
        else:
            length = int(torch.randint(20, 30, (1,), generator=generator))
            answer = [2 + (start + k) % (cfg.vocab - 2) for k in range(length)]
        data.append(([1, start], answer))
    return data


def collate(samples):
    width = max(len(p) + len(a) for p, a in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    labels = torch.full((len(samples), width), IGNORE)
    for row, (prompt, answer) in enumerate(samples):
        seq = torch.tensor(prompt + answer)
        ids[row, : len(seq)] = seq
        labels[row, len(prompt): len(seq)] = seq[len(prompt):]
    return ids[:, :-1], labels[:, 1:]


def windows(data, cfg, epoch):
    """Yield the micro-batches of one optimizer step at a time."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(100 + epoch)).tolist()
    per_step = cfg.per_device_batch_size * cfg.gradient_accumulation_steps
    for start in range(0, len(order), per_step):
        chunk = order[start: start + per_step]
        yield [collate([data[i] for i in chunk[j: j + cfg.per_device_batch_size]])
               for j in range(0, len(chunk), cfg.per_device_batch_size)]


class SFTTrainer:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr)
        self.tokens_seen = 0

    def compute_loss(self, batch, reduction="mean"):
        ids, labels = batch
        logits = self.model(ids)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction=reduction)

    def train_step(self, window):
        self.optimizer.zero_grad()
        n_tokens = sum(int((labels != IGNORE).sum()) for _, labels in window)
        step_loss = 0.0
        for batch in window:
            loss = self.compute_loss(batch, reduction="sum") / n_tokens
            loss.backward()
            step_loss += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_grad_norm)
        self.optimizer.step()
        self.tokens_seen += n_tokens
        return step_loss

    @torch.no_grad()
    def evaluate(self, data):
        self.model.eval()
        loss = self.compute_loss(collate(data)).item()
        self.model.train()
        return loss

    def train(self, data):
        for epoch in range(self.cfg.epochs):
            losses = [self.train_step(w) for w in windows(data, self.cfg, epoch)]
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} tokens {self.tokens_seen}")


def main(cfg=None):
    cfg = cfg or SFTConfig()
    torch.manual_seed(cfg.seed)
    data = build_dataset(cfg)
    trainer = SFTTrainer(LM(cfg), cfg)
    trainer.train(data)
    val = trainer.evaluate(data)
    print(f"token loss {val:.4f}")
    return {"val": val, "trainer": trainer, "data": data}


if __name__ == "__main__":
    main()
