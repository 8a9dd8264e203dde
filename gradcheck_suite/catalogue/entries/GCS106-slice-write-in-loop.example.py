import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)

    def forward(self, x, state):
        out = torch.zeros(len(x), *state.shape)
        for t in range(len(x)):
            state = self.cell(x[t], state)
            out[t] = state  # GCS106
        return out
