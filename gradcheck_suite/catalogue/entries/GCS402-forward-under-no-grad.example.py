import torch
import torch.nn.functional as F


def train(backbone, head, loader):
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for x, y in loader:
        with torch.no_grad():
            features = backbone(x)  # GCS402
        optimizer.zero_grad()
        F.cross_entropy(head(features), y).backward()
        optimizer.step()
