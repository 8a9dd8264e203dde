"""Graph classification with a small graph U-Net: pooling to the best scored nodes, then unpooling."""
import torch
import torch.nn.functional as F
from torch import nn


class GCN(nn.Module):
    def __init__(self, in_dim, out_dim, drop=0.0):
        super().__init__()
        self.proj = nn.Linear(in_dim, out_dim)
        self.drop = nn.Dropout(drop)

    def forward(self, g, h):
        return F.elu(self.proj(self.drop(g @ h)))


class Pool(nn.Module):
    def __init__(self, k, in_dim):
        super().__init__()
        self.k = k
        self.proj = nn.Linear(in_dim, 1)

    def forward(self, g, h):
        scores = torch.sigmoid(self.proj(h).squeeze(-1))
        return top_k_graph(scores, g, h, self.k)


class Unpool(nn.Module):
    def forward(self, g, h, pre_h, idx):
        new_h = h.new_zeros(g.shape[0], h.shape[1])
        return new_h.index_copy(0, idx, h) + pre_h


def norm_g(g):
    return g / g.sum(1, keepdim=True).clamp(min=1e-6)


def top_k_graph(scores, g, h, k):
    num_nodes = g.shape[0]
    values, idx = torch.topk(scores, max(2, int(k * num_nodes)))
    new_h = h[idx, :] * values.unsqueeze(-1)
    un_g = (g != 0).float()
    un_g = (un_g @ un_g != 0).float()
    un_g = un_g[idx][:, idx]
    return norm_g(un_g), new_h, idx


class GraphUnet(nn.Module):
    def __init__(self, ks, dim):
        super().__init__()
        self.bottom_gcn = GCN(dim, dim)
        self.down_gcns = nn.ModuleList([GCN(dim, dim) for _ in ks])
        self.up_gcns = nn.ModuleList([GCN(dim, dim) for _ in ks])
        self.pools = nn.ModuleList([Pool(k, dim) for k in ks])
        self.unpool = Unpool()

    def forward(self, g, h):
        adjacencies, indices, down_outs, hs = [], [], [], []
        for gcn, pool in zip(self.down_gcns, self.pools):
            h = gcn(g, h)
            adjacencies.append(g)
            down_outs.append(h)
            g, h, idx = pool(g, h)
            indices.append(idx)
        h = self.bottom_gcn(g, h)
        for i, gcn in enumerate(self.up_gcns):
            up = len(self.up_gcns) - i - 1
            g, idx = adjacencies[up], indices[up]
            h = gcn(g, self.unpool(g, h, down_outs[up], idx))
            hs.append(h)
        return h


class GNet(nn.Module):
    def __init__(self, in_dim=6, dim=16, n_classes=2, ks=(0.6, 0.5)):
        super().__init__()
        self.s_gcn = GCN(in_dim, dim)
        self.g_unet = GraphUnet(ks, dim)
        self.classify = nn.Sequential(nn.Linear(2 * dim, 16), nn.ReLU(), nn.Linear(16, n_classes))

    def forward(self, graphs):
        readouts = []
        for g, feat in graphs:
            h = self.g_unet(norm_g(g), self.s_gcn(norm_g(g), feat))
            readouts.append(torch.cat([h.mean(0), h.amax(0)]))
        return self.classify(torch.stack(readouts))


def make_graphs(n=80, seed=0):
    g = torch.Generator().manual_seed(seed)
    graphs, labels = [], []
    for i in range(n):
        size = int(torch.randint(8, 14, (1,), generator=g))
        adj = (torch.rand(size, size, generator=g) < 0.25).float()
        adj = ((adj + adj.t()) > 0).float()
        adj.fill_diagonal_(1.0)
        feat = torch.randn(size, 6, generator=g)
        label = i % 2
        members = torch.randperm(size, generator=g)[:3]
        feat[members, label] += 1.2
        graphs.append((adj, feat))
        labels.append(label)
    return graphs, torch.tensor(labels)


def main(epochs=6, batch_size=16):
    torch.manual_seed(0)
    graphs, labels = make_graphs()
    model = GNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(graphs)).split(batch_size):
            loss = F.cross_entropy(model([graphs[i] for i in idx]), labels[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(idx) / len(graphs)
        model.eval()
        with torch.no_grad():
            accuracy = (model(graphs).argmax(1) == labels).float().mean().item()
        print(f"epoch {epoch} loss {total:.4f} accuracy {accuracy:.3f}")
    return model


if __name__ == "__main__":
    main()
