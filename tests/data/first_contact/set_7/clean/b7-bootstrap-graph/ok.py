import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def block_graph(n=150, classes=5, dim=24, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    p = np.where(y[:, None] == y[None], 0.12, 0.01)
    a = np.triu(rng.random((n, n)) < p, 1)
    edges = np.stack(np.nonzero(a | a.T))
    x = 0.4 * rng.standard_normal((classes, dim))[y] + rng.standard_normal((n, dim))
    return torch.tensor(edges), torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def normalized(edges, n):
    loops = torch.arange(n).expand(2, n)
    edges = torch.cat([edges, loops], 1)
    deg = torch.zeros(n).index_add_(0, edges[0], torch.ones(edges.size(1)))
    weight = (deg[edges[0]] * deg[edges[1]]).rsqrt()
    return edges, weight


class GCNConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x, edges, weight):
        h = self.lin(x)
        out = torch.zeros_like(h)
        out.index_add_(0, edges[0], h[edges[1]] * weight.unsqueeze(1))
        return out + self.bias


class Encoder(nn.Module):
    def __init__(self, dims, dropout=0.1):
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(b, momentum=0.01) for b in dims[1:])
        self.dropout = dropout

    def layer(self, k, x, edges, weight):
        return F.relu(self.norms[k](self.convs[k](x, edges, weight)))

    def forward(self, x, edges, weight):
        for k in range(len(self.convs)):
            x = F.dropout(x, self.dropout, self.training)
            x = self.layer(k, x, edges, weight)
        return x


class Bootstrap(nn.Module):
    def __init__(self, encoder, dim):
        super().__init__()
        self.online = encoder
        self.target = copy.deepcopy(encoder).requires_grad_(False)
        self.predictor = nn.Sequential(nn.Linear(dim, 2 * dim), nn.PReLU(), nn.Linear(2 * dim, dim))

    def trainable_parameters(self):
        return list(self.online.parameters()) + list(self.predictor.parameters())

    @torch.no_grad()
    def update_target(self, mm):
        for p, q in zip(self.online.parameters(), self.target.parameters()):
            q.data.mul_(mm).add_(p.data, alpha=1 - mm)

    def forward(self, view1, view2):
        q1 = checkpoint(lambda h: self.predictor(h), self.online(*view1), use_reentrant=False)
        with torch.no_grad():
            z2 = self.target(*view2)
        return q1, z2


def augment(x, edges, drop_edge, drop_feat, generator):
    keep = torch.rand(edges.size(1), generator=generator) > drop_edge
    mask = torch.rand(x.size(1), generator=generator) > drop_feat
    e, w = normalized(edges[:, keep], len(x))
    return x * mask, e, w


def bootstrap_loss(q1, y2, q2, y1):
    return 2 - F.cosine_similarity(q1, y2, dim=-1).mean() - F.cosine_similarity(q2, y1, dim=-1).mean()


def linear_probe(encoder, x, edges, y, steps=80):
    probe_encoder = copy.deepcopy(encoder).eval()
    with torch.no_grad():
        z = F.normalize(probe_encoder(x, *normalized(edges, len(x))), dim=1)
    head = nn.Linear(z.size(1), int(y.max()) + 1)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05, weight_decay=1e-4)
    half = len(y) // 2
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(head(z[:half]), y[:half]).backward()
        optimizer.step()
    with torch.no_grad():
        return (head(z[half:]).argmax(1) == y[half:]).float().mean().item()


def main():
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(4)
    edges, x, y = block_graph()
    model = Bootstrap(Encoder((24, 32, 16)), 16)
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=5e-3, weight_decay=1e-5)
    total, warmup = 60, 10
    model.train()
    for step in range(1, total + 1):
        scale = step / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup + 1)))
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * scale
        mm = 1 - 0.01 * (1 + math.cos(math.pi * step / total)) / 2
        v1, v2 = augment(x, edges, 0.2, 0.2, gen), augment(x, edges, 0.4, 0.1, gen)
        q1, y2 = model(v1, v2)
        q2, y1 = model(v2, v1)
        loss = bootstrap_loss(q1, y2, q2, y1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_target(mm)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} probe {linear_probe(model.online, x, edges, y):.3f}")


if __name__ == "__main__":
    main()
