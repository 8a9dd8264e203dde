import torch
from torch import nn


def train(model, data, steps=8):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _, (x, y) in zip(range(steps), data):  # y: (batch,)
        error = model(x) - y  # (batch, 1) - (batch,)
        loss = (error**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def build():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
