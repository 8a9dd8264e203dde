import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def citation_graph(num_nodes=120, num_classes=4, num_features=32, seed=5):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_nodes)
    centers = rng.standard_normal((num_classes, num_features))
    features = 0.35 * centers[labels] + rng.standard_normal((num_nodes, num_features))
    prob = np.where(labels[:, None] == labels[None, :], 0.10, 0.02)
    upper = np.triu(rng.random((num_nodes, num_nodes)) < prob, 1)
    adj = (upper | upper.T | np.eye(num_nodes, dtype=bool)).astype(np.float32)
    return torch.tensor(adj), torch.tensor(features, dtype=torch.float32), torch.tensor(labels)


def sparse_matrix(indices, values, size):
    return torch.sparse_coo_tensor(indices, values.data, torch.Size([size, size]), check_invariants=False)


class SpGraphAttentionLayer(nn.Module):
    def __init__(self, in_features, out_features, dropout, alpha, concat=True):
        super().__init__()
        self.dropout = dropout
        self.concat = concat
        self.W = nn.Parameter(torch.empty(in_features, out_features))
        nn.init.xavier_normal_(self.W, gain=1.414)
        self.a = nn.Parameter(torch.empty(1, 2 * out_features))
        nn.init.xavier_normal_(self.a, gain=1.414)
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, x, adj):
        n = x.size(0)
        edge = adj.nonzero().t()
        h = x @ self.W
        edge_h = torch.cat((h[edge[0]], h[edge[1]]), dim=1).t()
        score = self.leakyrelu((self.a @ edge_h).squeeze(0))
        edge_e = torch.exp(-score)
        rowsum = torch.sparse.mm(sparse_matrix(edge, edge_e, n), torch.ones(n, 1))
        edge_e = F.dropout(edge_e, self.dropout, training=self.training)
        h_prime = torch.sparse.mm(sparse_matrix(edge, edge_e, n), h)
        h_prime = h_prime / rowsum
        return F.elu(h_prime) if self.concat else h_prime


class SpGAT(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout, alpha, nheads):
        super().__init__()
        self.dropout = dropout
        self.attentions = nn.ModuleList(
            SpGraphAttentionLayer(nfeat, nhid, dropout, alpha, concat=True) for _ in range(nheads)
        )
        self.out_att = SpGraphAttentionLayer(nhid * nheads, nclass, dropout, alpha, concat=False)

    def forward(self, x, adj):
        x = F.dropout(x, self.dropout, training=self.training)
        x = torch.cat([att(x, adj) for att in self.attentions], dim=1)
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(F.elu(self.out_att(x, adj)), dim=1)


def accuracy(output, labels):
    return (output.argmax(1) == labels).float().mean().item()


def train(epoch, model, optimizer, features, adj, labels, idx_train, idx_val):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()

    model.eval()
    with torch.no_grad():
        output = model(features, adj)
    loss_val = F.nll_loss(output[idx_val], labels[idx_val])
    if epoch % 10 == 0:
        print(
            f"Epoch: {epoch:04d} loss_train: {loss_train.item():.4f} loss_val: {loss_val.item():.4f} "
            f"acc_val: {accuracy(output[idx_val], labels[idx_val]):.4f}"
        )
    return loss_val.item()


def compute_test(model, features, adj, labels, idx_test):
    model.eval()
    with torch.no_grad():
        output = model(features, adj)
    print(f"Test set results: accuracy= {accuracy(output[idx_test], labels[idx_test]):.4f}")


def main():
    torch.manual_seed(72)
    adj, features, labels = citation_graph()
    perm = torch.randperm(len(labels))
    idx_train, idx_val, idx_test = perm[:40], perm[40:70], perm[70:]
    model = SpGAT(features.size(1), nhid=8, nclass=4, dropout=0.3, alpha=0.2, nheads=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    best = float("inf")
    for epoch in range(50):
        best = min(best, train(epoch, model, optimizer, features, adj, labels, idx_train, idx_val))
    print(f"best loss_val: {best:.4f}")
    compute_test(model, features, adj, labels, idx_test)


if __name__ == "__main__":
    main()
