from torch import nn


def activation_gradient(encoder: nn.Module, head: nn.Module, x):
    hidden = encoder(x)
    hidden.retain_grad()
    head(hidden).sum().backward()
    return hidden.grad.norm()
