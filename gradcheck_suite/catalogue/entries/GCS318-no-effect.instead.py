import torch
from torch import nn


def train(batches):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        for each in model.parameters():
            each.grad.clamp_(-0.1, 0.1)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.001
    model.eval()
    return model
