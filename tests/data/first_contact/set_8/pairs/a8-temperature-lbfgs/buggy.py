import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class ConvClassifier(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 9, 128), nn.ReLU(), nn.Linear(128, n_classes)
        )

    def forward(self, x):
        return self.classifier(self.features(x))


class ECELoss(nn.Module):
    def __init__(self, n_bins=15):
        super().__init__()
        edges = torch.linspace(0, 1, n_bins + 1)
        self.lowers, self.uppers = edges[:-1], edges[1:]

    def forward(self, logits, labels):
        confidence, predicted = F.softmax(logits, dim=1).max(1)
        correct = predicted.eq(labels).float()
        ece = torch.zeros(())
        for low, high in zip(self.lowers, self.uppers):
            inside = confidence.gt(low) & confidence.le(high)
            if inside.any():
                gap = confidence[inside].mean() - correct[inside].mean()
                ece = ece + gap.abs() * inside.float().mean()
        return ece


class ModelWithTemperature(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.temperature = nn.Parameter(torch.ones(1) * 1.5)

    def forward(self, x):
        return self.temperature_scale(self.model(x))

    def temperature_scale(self, logits):
        return logits / self.temperature.unsqueeze(1)

    def collect(self, loader):
        self.model.eval()
        logits_list, labels_list = [], []
        with torch.no_grad():
            for x, label in loader:
                logits_list.append(self.model(x))
                labels_list.append(label)
        return torch.cat(logits_list), torch.cat(labels_list)

    def set_temperature(self, valid_loader):
        nll_criterion, ece_criterion = nn.CrossEntropyLoss(), ECELoss()
        logits, labels = self.collect(valid_loader)
        print(f"before: NLL {nll_criterion(logits, labels).item():.4f}, "
              f"ECE {ece_criterion(logits, labels).item():.4f}")
        optimizer = optim.LBFGS([self.temperature], lr=0.05, max_iter=50)

        def closure():
            loss = nll_criterion(self.temperature_scale(logits), labels)
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            scaled = self.temperature_scale(logits)
            nll, ece = nll_criterion(scaled, labels).item(), ece_criterion(scaled, labels).item()
        print(f"temperature {self.temperature.item():.4f}")
        print(f"after: NLL {nll:.4f}, ECE {ece:.4f}")
        return self


def train(model, loader, epochs, lr):
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
    scheduler = optim.lr_scheduler.MultiStepLR(
        optimizer, milestones=[epochs // 2, 3 * epochs // 4], gamma=0.3
    )
    model.train()
    for epoch in range(epochs):
        running = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            running += loss.item()
        scheduler.step()
        if epoch % 5 == 0:
            print(f"epoch {epoch:2d} train NLL {running / len(loader):.4f}")


def make_images(n, n_classes, generator):
    prototypes = torch.randn(n_classes, 1, 12, 12, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(0, n_classes, (n,), generator=generator)
    images = prototypes[labels] + 3.0 * torch.randn(n, 1, 12, 12, generator=generator)
    return TensorDataset(images, labels)


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    train_loader = DataLoader(make_images(600, 8, generator), batch_size=50, shuffle=True)
    valid_loader = DataLoader(make_images(1000, 8, generator), batch_size=250)
    test_loader = DataLoader(make_images(1000, 8, generator), batch_size=250)
    model = ConvClassifier(8)
    train(model, train_loader, epochs=16, lr=0.02)
    calibrated = ModelWithTemperature(model).set_temperature(valid_loader)
    logits, labels = calibrated.collect(test_loader)
    with torch.no_grad():
        scaled = calibrated.temperature_scale(logits)
    print(f"test NLL {F.cross_entropy(logits, labels).item():.4f} "
          f"calibrated {F.cross_entropy(scaled, labels).item():.4f}")


if __name__ == "__main__":
    main()
