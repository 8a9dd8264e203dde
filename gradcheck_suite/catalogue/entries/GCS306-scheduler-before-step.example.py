import torch
from torch.optim.lr_scheduler import StepLR


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        scheduler.step()  # GCS306
        optimizer.step()
