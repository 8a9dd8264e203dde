"""Forecasting on a sequence of graph snapshots; a GRU evolves the weight of the graph convolution."""
import torch
from torch import nn
from torch.nn import functional as F


def normalised_adjacency(n_nodes, p, generator):
    a = (torch.rand(n_nodes, n_nodes, generator=generator) < p).float()
    a = ((a + a.t()) > 0).float()
    a.fill_diagonal_(1.0)
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d[None, :]


class EvolveGCNO(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        self.initial_weight = nn.Parameter(torch.empty(channels, channels))
        self.recurrent_layer = nn.GRU(channels, channels, num_layers=1)
        self.weight = None
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.initial_weight)

    def reinitialize_weight(self):
        self.weight = None

    def forward(self, adj, x):
        w = self.initial_weight if self.weight is None else self.weight
        w = w[None, :, :]
        _, w = self.recurrent_layer(w, w.contiguous())
        self.weight = nn.Parameter(w.squeeze(dim=0))
        return adj @ (x @ self.weight)


class RecurrentGCN(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.recurrent = EvolveGCNO(channels)
        self.linear = nn.Linear(channels, 1)

    def forward(self, adj, x):
        return self.linear(torch.relu(self.recurrent(adj, x))).squeeze(-1)


class Snapshots:
    def __init__(self, n_sequences=6, length=5, n_nodes=14, channels=6, seed=0):
        g = torch.Generator().manual_seed(seed)
        mixing = torch.randn(channels, 1, generator=g)
        self.sequences = []
        for _ in range(n_sequences):
            seq = []
            for t in range(length):
                adj = normalised_adjacency(n_nodes, 0.2, g)
                x = torch.randn(n_nodes, channels, generator=g)
                y = (adj @ torch.tanh(x) @ mixing).squeeze(-1) * (1 + 0.2 * t)
                seq.append((adj, x, y))
            self.sequences.append(seq)

    def __iter__(self):
        return iter(self.sequences)

    def __len__(self):
        return len(self.sequences)


def sequence_cost(model, sequence):
    model.recurrent.reinitialize_weight()
    cost = 0.0
    for adj, x, y in sequence:
        cost = cost + F.mse_loss(model(adj, x), y)
    return cost / len(sequence)


def train(model, dataset, epochs, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    curve = []
    for epoch in range(epochs):
        running = 0.0
        for sequence in dataset:
            optimizer.zero_grad()
            cost = sequence_cost(model, sequence)
            cost.backward()
            optimizer.step()
            running += cost.item()
        curve.append(running / len(dataset))
    return curve


def main():
    torch.manual_seed(2)
    dataset = Snapshots()
    model = RecurrentGCN(channels=6)
    curve = train(model, dataset, epochs=30, lr=0.01)
    print("mse, first and last epoch:", round(curve[0], 4), round(curve[-1], 4))
    return model, curve


if __name__ == "__main__":
    main()
