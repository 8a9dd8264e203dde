"""An LSTM remembers the last batch, and its graph.

Report: https://github.com/sgadgil6/cnslab_fmri/issues/4

The hidden state is an attribute of the module and goes into the next call. The second backward then runs
into the graph of the first batch, which is freed. What torch suggests, `retain_graph=True`, made the
reporter's process run out of memory, as each step goes through all the steps before.
"""

from __future__ import annotations

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.linear = nn.Linear(8, 1)
        self.hidden = (torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))

    def forward(self, x):
        out, self.hidden = self.lstm(x, self.hidden)
        return self.linear(out[:, -1])


def main():
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 5, 6)).pow(2).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
