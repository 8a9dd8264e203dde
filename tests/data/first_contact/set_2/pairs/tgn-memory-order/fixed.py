"""Link prediction on a stream of interactions with a temporal graph network."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class TGNConfig:
    nodes: int = 30
    events: int = 600
    batch: int = 15
    loyalty: float = 0.85
    memory_dim: int = 16
    embed_dim: int = 16
    memory_update_at_start: bool = True
    lr: float = 1e-2
    epochs: int = 16
    seed: int = 8


class Memory(nn.Module):
    def __init__(self, nodes, dim):
        super().__init__()
        self.register_buffer("store", torch.zeros(nodes, dim))

    def reset(self):
        self.store.zero_()

    def write(self, nodes, values):
        with torch.no_grad():
            self.store[nodes] = values.detach()


class TGN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.memory = Memory(cfg.nodes, cfg.memory_dim)
        self.features = nn.Embedding(cfg.nodes, cfg.embed_dim)
        self.message_fn = nn.Sequential(nn.Linear(cfg.memory_dim + cfg.embed_dim + 1, cfg.memory_dim), nn.ReLU())
        self.updater = nn.GRUCell(cfg.memory_dim, cfg.memory_dim)
        self.embedding = nn.Linear(cfg.memory_dim + cfg.embed_dim, cfg.embed_dim)
        self.affinity = nn.Sequential(nn.Linear(2 * cfg.embed_dim, cfg.embed_dim), nn.ReLU(), nn.Linear(cfg.embed_dim, 1))
        self.pending = None

    def reset(self):
        self.memory.reset()
        self.pending = None

    def updated_memory(self, events):
        """Memory of all nodes after the given events; the last event of a node counts."""
        source, target, delta = events
        nodes, partners = torch.cat([source, target]), torch.cat([target, source])
        store = self.memory.store
        message = self.message_fn(torch.cat([store[nodes], self.features(partners), torch.cat([delta, delta])[:, None]], dim=1))
        last = torch.full((self.cfg.nodes,), -1).scatter_reduce(0, nodes, torch.arange(len(nodes)), "amax")
        touched = (last >= 0).nonzero().squeeze(1)
        fresh = self.updater(message[last[touched]], store[touched])
        return touched, store.index_copy(0, touched, fresh), fresh

    def embed(self, nodes, memory):
        return torch.tanh(self.embedding(torch.cat([memory[nodes], self.features(nodes)], dim=1)))

    def forward(self, source, target, negative, delta):
        memory = self.memory.store
        if self.cfg.memory_update_at_start and self.pending is not None:
            touched, memory, fresh = self.updated_memory(self.pending)
            self.memory.write(touched, fresh)
        s, t, n = (self.embed(index, memory) for index in (source, target, negative))
        positive = self.affinity(torch.cat([s, t], dim=1)).squeeze(1)
        contrast = self.affinity(torch.cat([s, n], dim=1)).squeeze(1)
        if self.cfg.memory_update_at_start:
            self.pending = (source, target, delta)
        else:
            touched, _, fresh = self.updated_memory((source, target, delta))
            self.memory.write(touched, fresh)
        return positive, contrast


def make_stream(cfg):
    half = cfg.nodes // 2
    source = torch.randint(half, (cfg.events,))
    target = torch.randint(half, cfg.nodes, (cfg.events,))
    partner = torch.randint(half, cfg.nodes, (half,))
    for k in range(cfg.events):
        if torch.rand(1) < cfg.loyalty:
            target[k] = partner[source[k]]
        partner[source[k]] = target[k]
    return source, target, torch.rand(cfg.events)


def main(cfg=TGNConfig()):
    torch.manual_seed(cfg.seed)
    source, target, delta = make_stream(cfg)
    model = TGN(cfg)
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    loss_value = 0.0
    for epoch in range(cfg.epochs):
        model.train()
        model.reset()
        total, hits = 0.0, 0
        for index in torch.arange(cfg.events).split(cfg.batch):
            negative = torch.randint(cfg.nodes // 2, cfg.nodes, (len(index),))
            positive, contrast = model(source[index], target[index], negative, delta[index])
            scores = torch.cat([positive, contrast])
            labels = torch.cat([torch.ones_like(positive), torch.zeros_like(contrast)])
            loss = F.binary_cross_entropy_with_logits(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
            hits += (positive > contrast).sum().item()
        loss_value = total / cfg.events
        if epoch % 4 == 3:
            print(f"epoch {epoch + 1}  loss {loss_value:.4f}  ranked right {hits / cfg.events:.3f}")
    return {"loss": loss_value, "model": model, "initial": initial}


if __name__ == "__main__":
    main()
