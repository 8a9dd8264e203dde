import torch


def weights(n):
    return torch.zeros(n, requires_grad=True)
