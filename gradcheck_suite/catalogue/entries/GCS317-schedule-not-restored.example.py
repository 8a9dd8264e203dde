import torch
from torch import nn


def begin():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5**n)
    return model, optimizer, decay


def train(model, optimizer, decay, batches):
    for x, y in batches:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        decay.step()


def save(model, optimizer, decay):
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }


def resume(checkpoint, batches):
    model, optimizer, decay = begin()
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])  # GCS317
    train(model, optimizer, decay, batches)
    return optimizer
