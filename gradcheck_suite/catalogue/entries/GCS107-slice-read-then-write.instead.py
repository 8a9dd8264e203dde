import torch
from torch import nn


class Scan(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        state = [x[0]]
        for t in range(1, len(x)):
            state.append(x[t] + gate[t] * state[t - 1])
        return torch.stack(state)
