"""Bi-encoder retrieval with in-batch and mined hard negatives and a learned temperature."""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    dim: int = 24
    embed: int = 16
    topics: int = 40
    batch_size: int = 24
    max_negatives: int = 4
    epochs: int = 4
    steps_per_epoch: int = 40
    lr: float = 4e-3
    warmup: int = 10
    max_grad_norm: float = 1.0
    init_temperature: float = 0.2
    seed: int = 21


class Tower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.dim, 48), nn.GELU(), nn.Linear(48, cfg.embed))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class BiEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.query, self.document = Tower(cfg), Tower(cfg)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(cfg.init_temperature)))

    def forward(self, batch):
        return self.query(batch["query"]), self.document(batch["positive"]), self.document(batch["negatives"])


def infonce_loss(q, pos, neg, neg_mask, temperature):
    in_batch = q @ pos.t() / temperature
    hard = torch.einsum("bd,bnd->bn", q, neg) / temperature
    hard = hard.masked_fill(~neg_mask, float("-inf"))
    logits = torch.cat([in_batch, hard], dim=1)
    labels = torch.arange(len(q))
    return F.cross_entropy(logits, labels)


class Corpus:
    """Topics seen through two different linear views."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.topics = torch.randn(cfg.topics, cfg.dim)
        self.view_q = torch.randn(cfg.dim, cfg.dim) / cfg.dim ** 0.5
        self.view_d = torch.randn(cfg.dim, cfg.dim) / cfg.dim ** 0.5

    def queries(self, topic):
        return (self.topics[topic] + 0.3 * torch.randn(len(topic), self.cfg.dim)) @ self.view_q

    def documents(self, topic):
        return (self.topics[topic] + 0.3 * torch.randn(*topic.shape, self.cfg.dim)) @ self.view_d

    def collate(self):
        cfg = self.cfg
        topic = torch.randperm(cfg.topics)[:cfg.batch_size]
        other = (topic[:, None] + torch.randint(1, cfg.topics, (cfg.batch_size, cfg.max_negatives))) % cfg.topics
        negatives = self.documents(other)
        if torch.rand(()) < 0.8:
            counts = torch.randint(1, cfg.max_negatives + 1, (cfg.batch_size,))
        else:
            counts = torch.full((cfg.batch_size,), cfg.max_negatives)
        mask = torch.arange(cfg.max_negatives)[None] < counts[:, None]
        negatives = negatives * mask[..., None]
        return {"query": self.queries(topic), "positive": self.documents(topic),
                "negatives": negatives, "mask": mask}


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.corpus = Corpus(cfg)
        self.model = BiEncoder(cfg)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / cfg.warmup)
        )
        self.skipped = 0

    def train_step(self, batch):
        q, pos, neg = self.model(batch)
        loss = infonce_loss(q, pos, neg, batch["mask"], self.model.log_temperature.exp())
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_grad_norm)
        if not torch.isfinite(grad_norm):
            self.skipped += 1
            return loss.item()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    @torch.no_grad()
    def recall(self):
        topic = torch.arange(self.cfg.topics)
        scores = self.model.query(self.corpus.queries(topic)) @ self.model.document(self.corpus.documents(topic)).t()
        return (scores.argmax(1) == topic).float().mean().item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            losses = [self.train_step(self.corpus.collate()) for _ in range(self.cfg.steps_per_epoch)]
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} recall@1 {self.recall():.3f}")


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    trainer.fit()
    return {"recall": trainer.recall(), "skipped_steps": trainer.skipped}


if __name__ == "__main__":
    main()
