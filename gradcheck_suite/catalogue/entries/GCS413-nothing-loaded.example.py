import torch
from torch import nn


def resume(checkpoint):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    state = {f"module.{name}": value for name, value in checkpoint.items()}
    model.load_state_dict(state, strict=False)  # GCS413
    return model


def fit(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
