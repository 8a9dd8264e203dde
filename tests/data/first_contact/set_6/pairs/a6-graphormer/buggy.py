"""Graph transformer with structural encodings; graphs are padded to the largest of the batch."""
import torch
from torch import nn
from torch.nn import functional as F


def init_params(module, n_layers):
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(mean=0.0, std=0.02 / n_layers ** 0.5)
        if module.bias is not None:
            module.bias.data.zero_()
    if isinstance(module, nn.Embedding):
        module.weight.data.normal_(mean=0.0, std=0.5)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, attn_bias):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5 + attn_bias
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        x = x + self.out(y)
        return x + self.ffn(self.ffn_norm(x))


class Graphormer(nn.Module):
    def __init__(self, n_layers=2, dim=32, heads=4, num_atoms=8, num_edges=5, num_dist=12):
        super().__init__()
        self.atom_encoder = nn.Embedding(num_atoms + 1, dim, padding_idx=0)
        self.degree_encoder = nn.Embedding(16, dim, padding_idx=0)
        self.edge_encoder = nn.Embedding(num_edges + 1, heads, padding_idx=0)
        self.dist_encoder = nn.Embedding(num_dist, heads, padding_idx=0)
        self.graph_token = nn.Embedding(1, dim)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 1)
        self.apply(lambda module: init_params(module, n_layers=n_layers))

    def forward(self, atoms, degree, edges, dist):
        b, n = atoms.shape
        bias = (self.edge_encoder(edges) + self.dist_encoder(dist)).permute(0, 3, 1, 2)
        full = torch.zeros(b, bias.shape[1], n + 1, n + 1)
        full = full + F.pad(bias, (1, 0, 1, 0))
        pad = F.pad(atoms.eq(0), (1, 0))
        full = full.masked_fill(pad[:, None, None, :], float("-inf"))
        node = self.atom_encoder(atoms) + self.degree_encoder(degree)
        token = self.graph_token.weight.unsqueeze(0).expand(b, -1, -1) + node.sum(dim=1, keepdim=True) / 4
        x = torch.cat([token, node], dim=1)
        for layer in self.layers:
            x = layer(x, full)
        return self.head(self.norm(x[:, 0])).squeeze(1)


def molecule(size, generator):
    atoms = torch.randint(1, 9, (size,), generator=generator)
    adj = torch.zeros(size, size, dtype=torch.long)
    for i in range(1, size):
        j = int(torch.randint(0, i, (1,), generator=generator))
        adj[i, j] = adj[j, i] = int(torch.randint(1, 6, (1,), generator=generator))
    dist = torch.full((size, size), 11)
    reach = torch.eye(size, dtype=torch.bool)
    dist[reach] = 1
    for hop in range(2, 11):
        new = ((reach.float() @ (adj > 0).float()) > 0) & (dist == 11)
        dist[new] = hop
        reach = reach | new
    energy = (atoms.float() - 4.5).sum() * 0.15 + adj.sum().float() * 0.01
    return atoms, (adj > 0).sum(1), adj, dist, energy


def collate(items, length=None):
    n = length or max(len(i[0]) for i in items)
    vec = [torch.stack([F.pad(i[k], (0, n - len(i[0]))) for i in items]) for k in (0, 1)]
    mat = [torch.stack([F.pad(i[k], (0, n - len(i[0])) * 2) for i in items]) for k in (2, 3)]
    return (*vec, *mat), torch.stack([i[4] for i in items])


def main():
    torch.manual_seed(12)
    generator = torch.Generator().manual_seed(2)
    sizes = torch.randint(4, 13, (240,), generator=generator).tolist()
    graphs = [molecule(s, generator) for s in sizes]
    train, valid = graphs[:192], graphs[192:]
    model = Graphormer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    for epoch in range(8):
        model.train()
        total = 0.0
        for chunk in torch.randperm(len(train)).split(24):
            inputs, target = collate([train[i] for i in chunk])
            loss = F.l1_loss(model(*inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chunk)
        print(f"epoch {epoch} train mae {total / len(train):.4f}")
    model.eval()
    with torch.no_grad():
        inputs, target = collate(valid)
        print(f"valid mae {F.l1_loss(model(*inputs), target).item():.4f}")
        scores = torch.cat([model(*collate([g])[0]) for g in valid])
        print(f"rank correlation {torch.corrcoef(torch.stack([scores.argsort().argsort(), target.argsort().argsort()]))[0, 1]:.3f}")
    return model, valid


if __name__ == "__main__":
    main()
