"""LSTM cells in a plain list.

Report: https://github.com/ikostrikov/pytorch-meta-optimizer/issues/11

An optimizer that is to be learned is made of LSTM cells in a Python list. `parameters()` does not look into
lists, so what is trained is the output layer alone, on top of random cells. Everything runs.
"""

from __future__ import annotations

import torch
from torch import nn


class MetaOptimizer(nn.Module):
    def __init__(self, layers=2, hidden=6):
        super().__init__()
        self.inner = nn.Linear(3, hidden)
        self.cells = []
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
