"""Graph contrastive learning (GRACE) on a stochastic block model, with a linear probe."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    nodes_per_class: int = 30
    classes: int = 4
    features: int = 24
    hidden: int = 32
    proj: int = 16
    tau: float = 0.5
    drop_feature_1: float = 0.2
    drop_feature_2: float = 0.3
    drop_edge_1: float = 0.2
    drop_edge_2: float = 0.4
    epochs: int = 80
    lr: float = 5e-3
    weight_decay: float = 1e-5
    seed: int = 4


class Graph:
    def __init__(self, x, edge_index, y):
        self.x, self.edge_index, self.y = x, edge_index, y


def block_model(cfg):
    n = cfg.nodes_per_class * cfg.classes
    y = torch.arange(cfg.classes).repeat_interleave(cfg.nodes_per_class)
    same = y[:, None] == y[None, :]
    adj = torch.rand(n, n) < torch.where(same, 0.12, 0.03)
    adj = torch.triu(adj, 1)
    edges = (adj | adj.T).nonzero().T
    centres = torch.randn(cfg.classes, cfg.features)
    x = 0.6 * centres[y] + torch.randn(n, cfg.features)
    return Graph(x, edges, y)


def drop_feature(x, drop_prob):
    drop_mask = torch.rand(x.size(1)) < drop_prob
    x = x.clone()
    x[:, drop_mask] = 0
    return x


def drop_edge(edge_index, drop_prob):
    keep = torch.rand(edge_index.size(1)) >= drop_prob
    return edge_index[:, keep]


class GCNConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)

    def forward(self, x, edge_index):
        n = x.size(0)
        loop = torch.arange(n)
        src = torch.cat([edge_index[0], loop])
        dst = torch.cat([edge_index[1], loop])
        deg = torch.zeros(n).index_add_(0, dst, torch.ones(len(dst)))
        norm = (deg[src] * deg[dst]).rsqrt()
        h = self.lin(x)
        return torch.zeros_like(h).index_add(0, dst, h[src] * norm[:, None])


class GRACE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tau = cfg.tau
        self.conv1 = GCNConv(cfg.features, cfg.hidden * 2)
        self.conv2 = GCNConv(cfg.hidden * 2, cfg.hidden)
        self.proj = nn.Sequential(nn.Linear(cfg.hidden, cfg.proj), nn.ELU(), nn.Linear(cfg.proj, cfg.hidden))

    def forward(self, x, edge_index):
        return F.relu(self.conv2(F.relu(self.conv1(x, edge_index)), edge_index))

    def semi_loss(self, a, b):
        within = (F.normalize(a) @ F.normalize(a).T / self.tau).exp()
        between = (F.normalize(a) @ F.normalize(b).T / self.tau).exp()
        return -torch.log(between.diag() / (within.sum(1) + between.sum(1) - within.diag()))

    def loss(self, z1, z2):
        h1, h2 = self.proj(z1), self.proj(z2)
        return 0.5 * (self.semi_loss(h1, h2) + self.semi_loss(h2, h1)).mean()


def train_epoch(cfg, model, optimizer, graph):
    model.train()
    optimizer.zero_grad()
    edges1 = drop_edge(graph.edge_index, cfg.drop_edge_1)
    edges2 = drop_edge(graph.edge_index, cfg.drop_edge_2)
    x1 = drop_feature(graph.x, cfg.drop_feature_1)
    x2 = drop_feature(graph.x, cfg.drop_feature_2)
    z1, z2 = model(x1, edges1), model(x2, edges2)
    loss = model.loss(z1, z2)
    loss.backward()
    optimizer.step()
    return loss.item()


def linear_probe(model, graph, train_mask):
    model.eval()
    with torch.no_grad():
        z = model(graph.x, graph.edge_index)
    z = (z - z.mean(0)) / (z.std(0) + 1e-6)
    probe = nn.Linear(z.size(1), int(graph.y.max()) + 1)
    optimizer = torch.optim.Adam(probe.parameters(), lr=0.02, weight_decay=1e-3)
    for _ in range(100):
        loss = F.cross_entropy(probe(z[train_mask]), graph.y[train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    hit = probe(z[~train_mask]).argmax(1) == graph.y[~train_mask]
    return hit.float().mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    graph = block_model(cfg)
    train_mask = torch.rand(len(graph.y)) < 0.3
    model = GRACE(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    for epoch in range(cfg.epochs):
        loss = train_epoch(cfg, model, optimizer, graph)
        if epoch % 20 == 0:
            print(f"epoch {epoch} contrastive loss {loss:.4f}")
    accuracy = linear_probe(model, graph, train_mask)
    alive = int((graph.x.abs().sum(0) > 0).sum())
    print(f"probe accuracy {accuracy:.3f}")
    return {"probe_accuracy": accuracy, "feature_columns_left": alive}


if __name__ == "__main__":
    main()
