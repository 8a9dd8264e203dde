import torch
import torch.nn.functional as F
from torch import nn


class SparseTensor:
    def __init__(self, row, col, value, sparse_sizes):
        self.row = row
        self.col = col
        self.value = value
        self.sparse_sizes = sparse_sizes

    @classmethod
    def from_edge_index(cls, edge_index, num_nodes):
        value = torch.ones(edge_index.shape[1])
        return cls(edge_index[0], edge_index[1], value, (num_nodes, num_nodes))

    def set_value(self, value):
        return SparseTensor(self.row, self.col, value, self.sparse_sizes)

    def add_self_loops(self, fill=1.0):
        n = self.sparse_sizes[0]
        loop = torch.arange(n)
        return SparseTensor(
            torch.cat([self.row, loop]),
            torch.cat([self.col, loop]),
            torch.cat([self.value, torch.full((n,), fill)]),
            self.sparse_sizes,
        )

    def sum_rows(self):
        return torch.zeros(self.sparse_sizes[0]).index_add(0, self.row, self.value)

    def matmul(self, x):
        messages = self.value[:, None] * x[self.col]
        return torch.zeros(self.sparse_sizes[0], x.shape[1]).index_add(0, self.row, messages)


def gcn_norm(adj):
    adj = adj.add_self_loops()
    deg_inv_sqrt = adj.sum_rows().clamp(min=1e-6).pow(-0.5)
    return adj.set_value(deg_inv_sqrt[adj.row] * adj.value * deg_inv_sqrt[adj.col])


class GCNConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x, adj_t):
        return gcn_norm(adj_t).matmul(self.lin(x)) + self.bias


class Net(nn.Module):
    def __init__(self, num_features, hidden, num_classes, num_edges):
        super().__init__()
        self.edge_weight = nn.Parameter(torch.zeros(num_edges))
        self.conv1 = GCNConv(num_features, hidden)
        self.conv2 = GCNConv(hidden, num_classes)

    def forward(self, x, adj_t):
        adj_t.set_value(self.edge_weight.sigmoid())
        x = F.relu(self.conv1(x, adj_t))
        x = F.dropout(x, p=0.3, training=self.training)
        return self.conv2(x, adj_t)


def make_graph(num_nodes=90, num_classes=3, num_features=16, p_in=0.06, p_noise=0.05):
    y = torch.arange(num_nodes) % num_classes
    same = y[:, None] == y[None, :]
    prob = torch.where(same, torch.tensor(p_in), torch.tensor(p_noise))
    adj = torch.bernoulli(prob)
    adj.fill_diagonal_(0)
    edge_index = adj.nonzero().t()
    centers = torch.randn(num_classes, num_features)
    x = 0.6 * centers[y] + torch.randn(num_nodes, num_features)
    perm = torch.randperm(num_nodes)
    train_mask = torch.zeros(num_nodes, dtype=torch.bool)
    train_mask[perm[:45]] = True
    return x, y, edge_index, train_mask


def train(model, optimizer, data, l1=1e-3):
    x, y, adj_t, train_mask = data
    model.train()
    optimizer.zero_grad()
    out = model(x, adj_t)
    loss = F.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test(model, data):
    x, y, adj_t, train_mask = data
    model.eval()
    out = model(x, adj_t)
    pred = out.argmax(dim=-1)
    return [
        (pred[m] == y[m]).float().mean().item() for m in (train_mask, ~train_mask)
    ] + [F.cross_entropy(out[train_mask], y[train_mask]).item()]


def edge_report(model, y, edge_index):
    weight = model.edge_weight.detach().sigmoid()
    same = y[edge_index[0]] == y[edge_index[1]]
    return weight[same].mean().item(), weight[~same].mean().item()


def main():
    torch.manual_seed(12345)
    x, y, edge_index, train_mask = make_graph()
    adj_t = SparseTensor.from_edge_index(edge_index, x.shape[0])
    data = (x, y, adj_t, train_mask)
    model = Net(x.shape[1], 16, 3, edge_index.shape[1])
    optimizer = torch.optim.Adam(
        [
            {"params": [model.edge_weight], "lr": 0.1},
            {"params": list(model.conv1.parameters()) + list(model.conv2.parameters())},
        ],
        lr=0.01,
        weight_decay=5e-4,
    )
    for epoch in range(1, 121):
        loss = train(model, optimizer, data)
        if epoch % 20 == 0:
            train_acc, test_acc, train_loss = test(model, data)
            inside, across = edge_report(model, y, edge_index)
            print(
                f"Epoch {epoch:03d} loss {loss:.4f} train {train_acc:.3f} test {test_acc:.3f} "
                f"edges same {inside:.3f} other {across:.3f}"
            )


if __name__ == "__main__":
    main()
