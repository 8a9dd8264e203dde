"""Linear evaluation of a pretrained convolutional backbone on a new, shifted domain."""
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CFG = {
    "channels": 8,
    "pretrain_steps": 40,
    "probe_epochs": 3,
    "lr": 0.05,
    "batch_size": 32,
}


class VisualBackbone(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * channels)
        self.out_features = 2 * channels

    def forward(self, image):
        x = torch.relu(self.bn1(self.conv1(image)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return x.mean(dim=(-2, -1))


class Classifier(nn.Module):
    def __init__(self, visual, num_classes):
        super().__init__()
        self.visual = visual
        self.fc = nn.Linear(visual.out_features, num_classes)

    def forward(self, image):
        return self.fc(self.visual(image))


def synthetic(n, classes, shift, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=g)
    pattern = torch.randn(classes, 3, 8, 8, generator=torch.Generator().manual_seed(99))
    images = pattern[labels] + 0.5 * torch.randn(n, 3, 8, 8, generator=g) + shift
    return TensorDataset(images, labels)


def pretrain(cfg):
    model = Classifier(VisualBackbone(cfg["channels"]), 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = synthetic(256, 5, 0.0, 1).tensors
    for _ in range(cfg["pretrain_steps"]):
        pick = torch.randint(0, 256, (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[pick]), labels[pick]).backward()
        optimizer.step()
    return model.visual.state_dict()


class LinearProbe:
    """Only the last layer is trained; the visual features stay those of pretraining."""

    def __init__(self, cfg, weights, num_classes):
        self.cfg = cfg
        visual = VisualBackbone(cfg["channels"])
        visual.load_state_dict(weights)
        for param in visual.parameters():
            param.requires_grad = False
        self.model = Classifier(visual, num_classes)
        self.optimizer = torch.optim.SGD(self.model.fc.parameters(), lr=cfg["lr"], momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()

    def train_epoch(self, loader):
        self.model.visual.eval()
        self.model.fc.train()
        total = 0.0
        for images, labels in loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(labels)
        return total / len(loader.dataset)

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        hits = sum((self.model(images).argmax(1) == labels).sum().item() for images, labels in loader)
        return hits / len(loader.dataset)


def main():
    torch.manual_seed(0)
    weights = copy.deepcopy(pretrain(CFG))
    train = DataLoader(synthetic(192, 5, 1.5, 2), CFG["batch_size"], shuffle=True)
    val = DataLoader(synthetic(96, 5, 1.5, 3), CFG["batch_size"])
    probe = LinearProbe(CFG, weights, 5)
    for epoch in range(CFG["probe_epochs"]):
        loss = probe.train_epoch(train)
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {probe.evaluate(val):.3f}")
    return weights, probe.model


if __name__ == "__main__":
    main()
