import torch
from torch import nn


class Average:
    def __init__(self, parameters):
        self.shadow = [each.detach().clone() for each in parameters]

    @torch.no_grad()
    def update(self, parameters):
        for average, parameter in zip(self.shadow, parameters):
            average.lerp_(parameter, 0.1)

    @torch.no_grad()
    def copy_to(self, parameters):
        for average, parameter in zip(self.shadow, parameters):
            parameter.copy_(average)


def evaluate(model, average, batch):
    average.copy_to(model.parameters())  # GCS316
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    model.train()
    return loss.item()


def train(model, optimizer, batches):
    average = Average(model.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        average.update(model.parameters())
        evaluate(model, average, (x, y))
