"""checkpoint_first_layer.py, corrected."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 8)
        self.decoder = nn.Linear(8, 1)

    def forward(self, x):
        hidden = checkpoint(self.encoder, x, use_reentrant=False)
        return self.decoder(hidden.tanh())


def main():
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.encoder.weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).pow(2).mean().backward()
        optimizer.step()
    print("the encoder moved:", not torch.equal(before, model.encoder.weight))


if __name__ == "__main__":
    main()
