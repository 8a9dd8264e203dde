import torch
from torch import nn


def noisy(x):
    return x + 0.1 * torch.randn_like(x)


def train(batches):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        (model(noisy(x)) - y).pow(2).mean().backward()
        optimizer.step()
    return model
