import torch
from torch import nn
from torch.nn.functional import dropout


class Classifier(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        self.p = self.p if self.training else 0.0  # GCS706
        return self.head(dropout(self.body(x).relu(), self.p))


def train(batches, epochs=2):
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        model.train()
        for x, y in batches:
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print(sum((model(x) - y).pow(2).mean() for x, y in batches))
    return model
