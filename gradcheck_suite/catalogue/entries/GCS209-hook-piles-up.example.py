import torch
from torch import nn


def clamp(module, grad_input, grad_output):
    return (grad_input[0].clamp(min=0),)


def saliency(model, image):
    model[1].register_full_backward_hook(clamp)  # GCS209
    image = image.clone().requires_grad_()
    score = model(image[None]).sum()
    return torch.autograd.grad(score, image)[0].abs()


def train(model, optimizer, batches):
    maps = []
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        maps.append(saliency(model, x[0]))
    return maps
