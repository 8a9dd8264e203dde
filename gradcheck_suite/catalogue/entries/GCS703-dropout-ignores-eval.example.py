import torch
from torch import nn
from torch.nn import functional as F


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, 1)

    def forward(self, x):
        hidden = F.dropout(self.inner(x).relu(), 0.5)  # GCS703
        return self.outer(hidden)


def evaluate(model, x):
    model.eval()
    with torch.no_grad():
        return model(x)
