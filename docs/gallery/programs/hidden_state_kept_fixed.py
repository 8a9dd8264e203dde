"""hidden_state_kept.py, corrected."""

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
        out, hidden = self.lstm(x, self.hidden)
        self.hidden = tuple(state.detach() for state in hidden)
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
