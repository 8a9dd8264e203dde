"""cells_in_a_list.py, corrected."""

from __future__ import annotations

import torch
from torch import nn


class MetaOptimizer(nn.Module):
    def __init__(self, layers=2, hidden=6):
        super().__init__()
        self.inner = nn.Linear(3, hidden)
        self.cells = nn.ModuleList()
        for _ in range(layers):
            self.cells.append(nn.LSTMCell(hidden, hidden))
        self.outer = nn.Linear(hidden, 1)

    def forward(self, x):
        x = self.inner(x).tanh()
        for cell in self.cells:
            x, _ = cell(x)
        return self.outer(x)


def main():
    torch.manual_seed(0)
    model = MetaOptimizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).pow(2).mean().backward()
        optimizer.step()
    print(len(list(model.parameters())), "parameters")


if __name__ == "__main__":
    main()
