"""Sequence-to-sequence event model with scheduled teacher forcing: replays the last events backwards."""
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    source_len: int = 4
    target_len: int = 4
    symbols: int = 8
    hidden: int = 48
    batch: int = 32
    steps: int = 300
    lr: float = 8e-3
    forcing_start: float = 1.0
    forcing_end: float = 0.5
    clip: float = 1.0
    seed: int = 19


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.symbols, 16)
        self.gru = nn.GRU(16, cfg.hidden, batch_first=True)

    def forward(self, src):
        _, hidden = self.gru(self.embed(src))
        return hidden.squeeze(0)


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.symbols + 1, 16)
        self.cell = nn.GRUCell(16, cfg.hidden)
        self.out = nn.Linear(cfg.hidden, cfg.symbols)

    def forward(self, token, hidden):
        hidden = self.cell(self.embed(token), hidden)
        return self.out(hidden), hidden


class Seq2Seq(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.encoder, self.decoder = Encoder(cfg), Decoder(cfg)

    def forward(self, src, tgt=None, forcing=0.0):
        hidden = self.encoder(src)
        token = torch.full((src.size(0),), self.cfg.symbols, dtype=torch.long)
        use_forcing = tgt is not None and random.random() < forcing
        outputs = []
        for t in range(self.cfg.target_len):
            logits, hidden = self.decoder(token, hidden)
            outputs.append(logits)
            hidden = hidden.detach()
            token = tgt[:, t] if use_forcing else logits.argmax(-1).detach()
        return torch.stack(outputs, 1)


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        random.seed(cfg.seed)
        self.cfg, self.model = cfg, Seq2Seq(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.g = torch.Generator().manual_seed(cfg.seed)

    def batch(self):
        src = torch.randint(self.cfg.symbols, (self.cfg.batch, self.cfg.source_len), generator=self.g)
        return src, src.flip(1)

    def forcing(self, step):
        share = step / self.cfg.steps
        return self.cfg.forcing_start + share * (self.cfg.forcing_end - self.cfg.forcing_start)

    def train_step(self, step):
        self.model.train()
        src, tgt = self.batch()
        logits = self.model(src, tgt, self.forcing(step))
        loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, batches=6):
        self.model.eval()
        hits = [(self.model(src).argmax(-1) == tgt).float().mean() for src, tgt in (self.batch() for _ in range(batches))]
        return torch.stack(hits).mean().item()


def main():
    cfg = Config()
    trainer = Trainer(cfg)
    for step in range(cfg.steps):
        loss = trainer.train_step(step)
        if step % 75 == 74:
            print(f"step {step + 1} loss {loss:.4f} free-running accuracy {trainer.evaluate():.3f}")
    return {"loss": loss, "accuracy": trainer.evaluate()}


if __name__ == "__main__":
    main()
