import torch


def normalize(x):
    if torch.compiler.is_compiling():
        return x / x.detach().norm(dim=-1, keepdim=True)
    return x / x.norm(dim=-1, keepdim=True)
