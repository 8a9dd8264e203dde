import torch

scale = torch.linspace(0.5, 2.0, 64, dtype=torch.float64)


def loss(model, x):
    return (model(x) * scale).square().mean()
