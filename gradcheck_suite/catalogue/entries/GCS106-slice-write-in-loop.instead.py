import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)

    def forward(self, x, state):
        out = []
        for t in range(len(x)):
            state = self.cell(x[t], state)
            out.append(state)
        return torch.stack(out)
