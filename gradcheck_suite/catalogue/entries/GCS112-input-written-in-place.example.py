import torch


def drop_features(x, rate):
    dropped = torch.rand(x.size(1)) < rate
    x[:, dropped] = 0
    return x


def train(model, optimizer, x, y, epochs=20):
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(drop_features(x, 0.1))  # GCS112
        (out - y).pow(2).mean().backward()
        optimizer.step()
