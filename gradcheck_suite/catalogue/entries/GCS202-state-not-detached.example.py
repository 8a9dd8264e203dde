import torch
from torch import nn


def train(cell, batches):
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    state = torch.zeros(2, cell.hidden_size)
    for x, target in batches:
        state = cell(x, state)  # GCS202
        loss = (state - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
