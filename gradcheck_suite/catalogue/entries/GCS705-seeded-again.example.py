import torch
from torch import nn


def train(batches):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        torch.manual_seed(0)  # GCS705
        noisy = x + 0.1 * torch.randn_like(x)
        optimizer.zero_grad()
        (model(noisy) - y).pow(2).mean().backward()
        optimizer.step()
    return model
