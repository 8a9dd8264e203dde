"""Node classification with a small GCN, model selection on validation accuracy."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class GraphData:
    x: torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor


def stochastic_block_model(n_per=50, classes=4, dim=16, p_in=0.09, p_out=0.012, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat_interleave(n_per)
    n = y.numel()
    prob = torch.where(y[:, None] == y[None, :], p_in, p_out)
    upper = torch.triu(torch.rand(n, n, generator=g) < prob, 1)
    adj = upper | upper.t()
    centres = torch.randn(classes, dim, generator=g)
    x = centres[y] * 0.5 + torch.randn(n, dim, generator=g)
    perm = torch.randperm(n, generator=g)
    train_mask = torch.zeros(n, dtype=torch.bool)
    train_mask[perm[:60]] = True
    return GraphData(x, adj.nonzero().t(), y, train_mask, ~train_mask)


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x, edge_index):
        n = x.size(0)
        loops = torch.arange(n).repeat(2, 1)
        row, col = torch.cat([edge_index, loops], dim=1)
        deg = torch.zeros(n).index_add(0, col, torch.ones(col.numel()))
        norm = deg[row].rsqrt() * deg[col].rsqrt()
        h = self.lin(x)
        return torch.zeros_like(h).index_add(0, col, h[row] * norm[:, None]) + self.bias


class GCN(nn.Module):
    def __init__(self, d_in, hidden, classes, layers=2, dropout=0.5):
        super().__init__()
        dims = [d_in] + [hidden] * (layers - 1) + [classes]
        self.convs = nn.ModuleList(GraphConv(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers - 1))
        self.dropout = dropout

    def forward(self, data):
        x = data.x
        for conv, norm in zip(self.convs[:-1], self.norms):
            x = F.relu(norm(conv(x, data.edge_index)))
            x = F.dropout(x, p=self.dropout, training=self.training)
        return self.convs[-1](x, data.edge_index)


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    pred = model(data).argmax(dim=-1)
    hit = (pred == data.y).float()
    return hit[data.train_mask].mean().item(), hit[data.val_mask].mean().item()


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, -1.0, 0, None

    def step(self, score, model):
        if score > self.best:
            self.best, self.bad, self.state = score, 0, copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad > self.patience


def fit(data, epochs=80, patience=40):
    model = GCN(data.x.size(1), 32, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    stopper = EarlyStopping(patience)
    for epoch in range(epochs):
        model.train()
        optimizer.zero_grad()
        out = model(data)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        train_acc, val_acc = evaluate(model, data)
        if epoch % 20 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} train {train_acc:.3f} val {val_acc:.3f}")
        if stopper.step(val_acc, model):
            break
    model.load_state_dict(stopper.state)
    return model, stopper.best


def main():
    torch.manual_seed(1)
    data = stochastic_block_model()
    model, best = fit(data)
    scores = [evaluate(model, data)[1] for _ in range(5)]
    print("best validation accuracy", round(best, 3), "final", round(scores[0], 3))
    return {"best_val": best, "final_val": scores, "spread": max(scores) - min(scores)}


if __name__ == "__main__":
    main()
