"""Training with averaged weights that are swapped in for validation and for the exported model only."""
from contextlib import contextmanager

import torch
import torch.nn as nn


class ShadowWeights:
    def __init__(self, module, decay=0.95):
        self.decay = decay
        self.count = 0
        self.shadow = {k: v.detach().clone() for k, v in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module):
        self.count += 1
        d = min(self.decay, (1 + self.count) / (10 + self.count))
        for key, value in module.state_dict().items():
            if value.dtype.is_floating_point:
                self.shadow[key].lerp_(value, 1 - d)
            else:
                self.shadow[key].copy_(value)

    @contextmanager
    def swapped_into(self, module):
        kept = {k: v.detach().clone() for k, v in module.state_dict().items()}
        module.load_state_dict(self.shadow)
        try:
            yield module
        finally:
            module.load_state_dict(kept)

    def state_dict(self):
        return {"decay": self.decay, "count": self.count,
                "shadow": {k: v.clone() for k, v in self.shadow.items()}}


class ConvNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        return self.fc(self.dropout(self.features(x).flatten(1)))


class Experiment:
    def __init__(self, epochs=5):
        self.model = ConvNet()
        self.shadow = ShadowWeights(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs)
        self.epochs = epochs
        self.best = None

    def train(self, images, labels):
        self.model.train()
        for part in torch.randperm(len(images)).split(32):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(images[part]), labels[part]).backward()
            self.optimizer.step()
            self.shadow.update(self.model)
        self.scheduler.step()

    @torch.no_grad()
    def accuracy(self, images, labels):
        self.model.eval()
        return (self.model(images).argmax(1) == labels).float().mean().item()

    def run(self, train, valid):
        for epoch in range(self.epochs):
            self.train(*train)
            raw = self.accuracy(*valid)
            with self.shadow.swapped_into(self.model):
                smooth = self.accuracy(*valid)
            if self.best is None or smooth > self.best[0]:
                self.best = (smooth, self.shadow.state_dict())
            print(f"epoch {epoch}: raw {raw:.3f}, averaged {smooth:.3f}")
        exported = ConvNet().eval()
        exported.load_state_dict(self.best[1]["shadow"])
        return exported


def patterns(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=g)
    base = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(50))
    return base[labels] + 0.9 * torch.randn(n, 1, 8, 8, generator=g), labels


def main():
    torch.manual_seed(6)
    return Experiment().run(patterns(256, 1), patterns(128, 2))


if __name__ == "__main__":
    main()
