"""Temporal graph network with a node memory, trained on link prediction over a stream of interactions."""
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    num_nodes: int = 40
    memory_dim: int = 16
    message_dim: int = 16
    edge_dim: int = 4
    batch_size: int = 50
    epochs: int = 5
    lr: float = 5e-3
    memory_update_at_start: bool = True
    seed: int = 3


class Memory:
    def __init__(self, num_nodes, dim):
        self.num_nodes, self.dim = num_nodes, dim
        self.reset()

    def reset(self):
        self.state = torch.zeros(self.num_nodes, self.dim)
        self.messages = {}

    def get(self, nodes):
        return self.state[nodes]

    def set(self, nodes, values):
        state = self.state.clone()
        state[nodes] = values
        self.state = state

    def store(self, nodes, raw):
        for node, message in zip(nodes.tolist(), raw):
            self.messages[node] = message

    def pop(self):
        nodes = torch.tensor(list(self.messages), dtype=torch.long)
        raw = torch.stack(list(self.messages.values())) if self.messages else None
        self.messages = {}
        return nodes, raw

    def detach(self):
        self.state = self.state.detach()
        self.messages = {n: m.detach() for n, m in self.messages.items()}


class TGN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.memory = Memory(cfg.num_nodes, cfg.memory_dim)
        self.message_fn = nn.Sequential(nn.Linear(2 * cfg.memory_dim + cfg.edge_dim, cfg.message_dim), nn.ReLU())
        self.memory_updater = nn.GRUCell(cfg.message_dim, cfg.memory_dim)
        self.node_embedding = nn.Embedding(cfg.num_nodes, cfg.memory_dim)
        self.affinity = nn.Sequential(nn.Linear(4 * cfg.memory_dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def update_memory(self):
        nodes, raw = self.memory.pop()
        if raw is None:
            return
        updated = self.memory_updater(self.message_fn(raw), self.memory.get(nodes))
        self.memory.set(nodes, updated)

    def embed(self, nodes):
        return torch.cat([self.memory.get(nodes), self.node_embedding(nodes)], dim=1)

    def forward(self, src, dst, neg, edge):
        if self.cfg.memory_update_at_start:
            self.update_memory()
        hs, hd, hn = self.embed(src), self.embed(dst), self.embed(neg)
        pos_score = self.affinity(torch.cat([hs, hd], dim=1)).squeeze(1)
        neg_score = self.affinity(torch.cat([hs, hn], dim=1)).squeeze(1)
        ms, md = self.memory.get(src), self.memory.get(dst)
        self.memory.store(src, torch.cat([ms, md, edge], dim=1))
        self.memory.store(dst, torch.cat([md, ms, edge], dim=1))
        if not self.cfg.memory_update_at_start:
            self.update_memory()
        return pos_score, neg_score


def make_stream(cfg, events=1000):
    g = torch.Generator().manual_seed(cfg.seed)
    half = cfg.num_nodes // 2
    mood = torch.randint(0, cfg.edge_dim, (half,), generator=g)
    src = torch.randint(0, half, (events,), generator=g)
    dst = torch.empty(events, dtype=torch.long)
    edge = torch.zeros(events, cfg.edge_dim)
    for i, s in enumerate(src.tolist()):
        dst[i] = half + (mood[s] * 5 + torch.randint(0, 5, (1,), generator=g)) % half
        if torch.rand(1, generator=g) < 0.2:
            mood[s] = torch.randint(0, cfg.edge_dim, (1,), generator=g)
        edge[i, mood[s]] = 1.0
    return src, dst, edge


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = TGN(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)

    def run_epoch(self, stream):
        src, dst, edge = stream
        self.model.memory.reset()
        total, half = 0.0, self.cfg.num_nodes // 2
        for i in range(0, len(src), self.cfg.batch_size):
            s, d, e = (x[i:i + self.cfg.batch_size] for x in (src, dst, edge))
            neg = half + torch.randint(0, half, d.shape)
            self.optimizer.zero_grad()
            pos_score, neg_score = self.model(s, d, neg, e)
            loss = F.softplus(-pos_score).mean() + F.softplus(neg_score).mean()
            loss.backward()
            self.optimizer.step()
            self.model.memory.detach()
            total += loss.item() * len(s)
        return total / len(src)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    stream = make_stream(cfg)
    for epoch in range(cfg.epochs):
        loss = trainer.run_epoch(stream)
        print(f"epoch {epoch} loss {loss:.4f}")
    moved = sum(not torch.equal(before[n], p) for n, p in trainer.model.named_parameters())
    return {"loss": loss, "moved": moved, "parameters": len(before)}


if __name__ == "__main__":
    main()
