import torch
from torch import nn
from torch.optim import lr_scheduler


def train(batches):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    for x, y in batches:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        print(scheduler.get_last_lr())
    return optimizer
