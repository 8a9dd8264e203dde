import torch


def pairwise_distance(a, b):
    square = (a[:, None] - b[None, :]).pow(2).sum(dim=-1)
    return torch.where(square > 0, square.sqrt(), 0.0)  # GCS604
