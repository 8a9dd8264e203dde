import torch
import torch.nn.functional as F
from torch import nn


def finetune(model, loader, classes):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(model.head.in_features, classes)  # GCS307
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
