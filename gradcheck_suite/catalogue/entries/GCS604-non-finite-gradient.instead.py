import torch


def pairwise_distance(a, b):
    square = (a[:, None] - b[None, :]).pow(2).sum(dim=-1)
    safe = torch.where(square > 0, square, 1.0)
    return torch.where(square > 0, safe.sqrt(), 0.0)
