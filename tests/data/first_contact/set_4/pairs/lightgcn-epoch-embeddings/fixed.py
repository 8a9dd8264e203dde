"""LightGCN with BPR on a small implicit feedback data set."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    users: int = 60
    items: int = 80
    groups: int = 4
    dim: int = 16
    layers: int = 2
    batch: int = 64
    epochs: int = 8
    lr: float = 2e-2
    reg: float = 1e-4
    seed: int = 0


class Interactions:
    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        self.cfg = cfg
        same = (torch.arange(cfg.users) % cfg.groups).unsqueeze(1) == (torch.arange(cfg.items) % cfg.groups)
        prob = torch.where(same, 0.55, 0.03)
        full = torch.rand(cfg.users, cfg.items, generator=g) < prob
        held = torch.rand(cfg.users, cfg.items, generator=g) < 0.25
        self.train, self.test = full & ~held, full & held

    def adjacency(self):
        n = self.cfg.users + self.cfg.items
        dense = torch.zeros(n, n)
        dense[: self.cfg.users, self.cfg.users:] = self.train.float()
        dense = dense + dense.t()
        d = dense.sum(1).clamp(min=1).pow(-0.5)
        return (d.unsqueeze(1) * dense * d).to_sparse_coo().coalesce()

    def triplets(self, generator):
        pairs = self.train.nonzero()
        pairs = pairs[torch.randperm(len(pairs), generator=generator)]
        negatives = torch.randint(self.cfg.items, (len(pairs),), generator=generator)
        clash = self.train[pairs[:, 0], negatives]
        negatives[clash] = torch.randint(self.cfg.items, (int(clash.sum()),), generator=generator)
        for i in range(0, len(pairs), self.cfg.batch):
            block = pairs[i: i + self.cfg.batch]
            yield block[:, 0], block[:, 1], negatives[i: i + self.cfg.batch]


class LightGCN(nn.Module):
    def __init__(self, cfg, adjacency):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("adjacency", adjacency)
        self.user_embedding = nn.Embedding(cfg.users, cfg.dim)
        self.item_embedding = nn.Embedding(cfg.items, cfg.dim)
        nn.init.normal_(self.user_embedding.weight, std=0.1)
        nn.init.normal_(self.item_embedding.weight, std=0.1)

    def propagate(self):
        x = torch.cat([self.user_embedding.weight, self.item_embedding.weight])
        layers = [x]
        for _ in range(self.cfg.layers):
            x = torch.sparse.mm(self.adjacency, x)
            layers.append(x)
        return torch.stack(layers).mean(0).split([self.cfg.users, self.cfg.items])

    def bpr_loss(self, users, items, u, pos, neg):
        scores = (users[u] * (items[pos] - items[neg])).sum(1)
        ego = (self.user_embedding(u).pow(2).sum() + self.item_embedding(pos).pow(2).sum()
               + self.item_embedding(neg).pow(2).sum()) / (2 * len(u))
        return -F.logsigmoid(scores).mean() + self.cfg.reg * ego


@torch.no_grad()
def recall(model, data, k=10):
    model.eval()
    users, items = model.propagate()
    scores = (users @ items.t()).masked_fill(data.train, -1e9)
    top = scores.topk(k, dim=1).indices
    hits = data.test.gather(1, top).sum(1).float()
    wanted = data.test.sum(1).clamp(min=1).float()
    model.train()
    return (hits / wanted).mean().item()


class Trainer:
    def __init__(self, cfg, data, model):
        self.cfg, self.data, self.model = cfg, data, model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        self.generator = torch.Generator().manual_seed(cfg.seed + 1)

    def train_epoch(self):
        total, n = 0.0, 0
        for u, pos, neg in self.data.triplets(self.generator):
            users, items = self.model.propagate()
            self.optimizer.zero_grad()
            loss = self.model.bpr_loss(users, items, u, pos, neg)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(u)
            n += len(u)
        return total / n


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    data = Interactions(cfg)
    trainer = Trainer(cfg, data, LightGCN(cfg, data.adjacency()))
    for epoch in range(cfg.epochs):
        loss = trainer.train_epoch()
        if epoch % 2 == 1:
            print(f"epoch {epoch} bpr {loss:.4f} recall@10 {recall(trainer.model, data):.4f}")
    return {"model": trainer.model, "loss": loss, "recall": recall(trainer.model, data)}


if __name__ == "__main__":
    main()
