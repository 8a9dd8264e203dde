import copy

import torch
from torch import nn


class Average:
    def __init__(self, model, decay=0.9):
        self.model = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        pairs = zip(self.model.parameters(), model.parameters())
        for average, parameter in pairs:  # GCS704
            average.lerp_(parameter, 1 - self.decay)


def train(model, optimizer, batches):
    average = Average(model)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        average.update(model)
    return average.model(x)
