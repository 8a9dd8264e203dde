import torch
from torch import nn


def drop_features(x, probability):
    dropped = torch.rand(x.shape[1]) < probability
    x = x.clone()
    x[:, dropped] = 0
    return x


def train(model, x, y, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        corrupted = drop_features(x, 0.2)
        loss = nn.functional.mse_loss(model(corrupted), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
