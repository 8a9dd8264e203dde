import copy

import torch
from torch import nn
from torch.nn import functional as F


class Momentum(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
        self.slow_body = copy.deepcopy(self.body).requires_grad_(False)
        self.slow_head = copy.deepcopy(self.head).requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        body = self.body.parameters()
        pairs = zip(self.slow_body.parameters(), body)  # GCS414
        for slow, fast in pairs:
            slow.lerp_(fast, 0.1)

    def forward(self, x):
        fast = self.head(torch.relu(self.body(x)))
        with torch.no_grad():
            slow = self.slow_head(torch.relu(self.slow_body(x)))
        return F.mse_loss(fast, slow + 1)


def train(batches):
    model = Momentum()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        model.follow()
    return model
