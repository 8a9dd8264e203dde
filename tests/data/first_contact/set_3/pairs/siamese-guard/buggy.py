"""Sentence-like embeddings with a triplet loss and a retrieval evaluation."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class TrainArgs:
    vocab: int = 40
    length: int = 6
    classes: int = 8
    dim: int = 24
    margin: float = 1.0
    word_dropout: float = 0.3
    lr: float = 5e-3
    batch_size: int = 24
    epochs: int = 6
    steps: int = 25
    max_grad_norm: float = 5.0
    seed: int = 13


class Encoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words = nn.EmbeddingBag(args.vocab, args.dim, mode="mean")
        self.dense = nn.Sequential(nn.Linear(args.dim, args.dim), nn.Tanh(), nn.Linear(args.dim, args.dim))

    def forward(self, tokens):
        return self.dense(self.words(tokens))


def euclidean_distance(a, b):
    return (a - b).pow(2).sum(dim=-1).sqrt()


class TripletLoss(nn.Module):
    def __init__(self, model, margin):
        super().__init__()
        self.model = model
        self.margin = margin

    def forward(self, anchor, positive, negative):
        a, p, n = (self.model(x) for x in (anchor, positive, negative))
        losses = torch.relu(euclidean_distance(a, p) - euclidean_distance(a, n) + self.margin)
        return losses.mean()


class Corpus:
    """Each topic prefers a few words; a positive is the anchor with some words exchanged."""

    def __init__(self, args):
        self.args = args
        self.topics = torch.softmax(2.0 * torch.randn(args.classes, args.vocab), dim=-1)

    def sentences(self, labels):
        return torch.multinomial(self.topics[labels], self.args.length, replacement=True)

    def triplets(self, n):
        labels = torch.randint(0, self.args.classes, (n,))
        other = (labels + torch.randint(1, self.args.classes, (n,))) % self.args.classes
        anchor = self.sentences(labels)
        swap = torch.rand(anchor.shape) < self.args.word_dropout
        positive = torch.where(swap, self.sentences(labels), anchor)
        return anchor, positive, self.sentences(other)

    def labelled(self, n):
        labels = torch.randint(0, self.args.classes, (n,))
        return self.sentences(labels), labels


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args = args
        self.corpus = Corpus(args)
        self.model = Encoder(args)
        self.loss = TripletLoss(self.model, args.margin)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, args.epochs)
        self.updates = 0
        self.history = []

    def training_step(self):
        loss = self.loss(*self.corpus.triplets(self.args.batch_size))
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
            self.updates += 1
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        ref, ref_labels = self.corpus.labelled(200)
        query, labels = self.corpus.labelled(200)
        nearest = torch.cdist(self.model(query), self.model(ref)).argmin(dim=1)
        self.model.train()
        return (ref_labels[nearest] == labels).float().mean().item()

    def train(self):
        for epoch in range(self.args.epochs):
            losses = [self.training_step() for _ in range(self.args.steps)]
            self.scheduler.step()
            self.history.append((sum(losses) / len(losses), self.evaluate()))
            print(f"epoch {epoch} loss {self.history[-1][0]:.4f} retrieval {self.history[-1][1]:.3f}")
        return self


def main():
    return Trainer(TrainArgs()).train()


if __name__ == "__main__":
    main()
