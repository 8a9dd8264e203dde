import torch
from torch import nn


@torch.no_grad()
def evaluate(model: nn.Module, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(dim=1) == y).sum().item()
    model.train()
    return correct
