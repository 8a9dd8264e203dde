import torch


@torch.no_grad()
def predict(model, x):
    return model(x)
