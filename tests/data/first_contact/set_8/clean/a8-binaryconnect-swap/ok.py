import torch
import torch.nn.functional as F
from torch import nn


class BinaryConnect:
    """Courbariaux et al. 2015: propagate with binary weights, update the real ones."""

    def __init__(self, model, skip=("head",)):
        self.targets = [
            m.weight
            for name, m in model.named_modules()
            if isinstance(m, (nn.Conv2d, nn.Linear)) and name not in skip
        ]
        self.real = [w.detach().clone() for w in self.targets]

    @torch.no_grad()
    def binarize(self):
        for weight, real in zip(self.targets, self.real):
            real.copy_(weight)
            weight.copy_(torch.where(weight >= 0, 1.0, -1.0) * weight.abs().mean())

    @torch.no_grad()
    def restore(self):
        for weight, real in zip(self.targets, self.real):
            weight.copy_(real)

    @torch.no_grad()
    def clip(self):
        for weight in self.targets:
            weight.clamp_(-1.0, 1.0)

    def __enter__(self):
        self.binarize()
        return self

    def __exit__(self, *exc):
        self.restore()


class BinaryNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 24, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(24)
        self.fc = nn.Linear(24 * 9, 64, bias=False)
        self.bn3 = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, n_classes)

    def forward(self, x):
        x = F.max_pool2d(F.hardtanh(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.hardtanh(self.bn2(self.conv2(x))), 2)
        return self.head(F.hardtanh(self.bn3(self.fc(x.flatten(1)))))


def make_images(n, generator, n_classes=6):
    prototypes = torch.randn(n_classes, 1, 12, 12, generator=torch.Generator().manual_seed(21))
    y = torch.randint(0, n_classes, (n,), generator=generator)
    return prototypes[y] + 1.5 * torch.randn(n, 1, 12, 12, generator=generator), y


def evaluate(model, op, x, y):
    model.eval()
    with torch.no_grad(), op:
        logits = model(x)
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x, y = make_images(600, generator)
    x_test, y_test = make_images(300, generator)
    model = BinaryNet(6)
    op = BinaryConnect(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)
    for epoch in range(6):
        model.train()
        running = []
        for pick in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            with op:
                loss = F.cross_entropy(model(x[pick]), y[pick])
                loss.backward()
            optimizer.step()
            op.clip()
            running.append(loss.detach())
        scheduler.step()
        test_loss, accuracy = evaluate(model, op, x_test, y_test)
        train_loss = torch.stack(running).mean().item()
        print(f"epoch {epoch} train {train_loss:.4f} test {test_loss:.4f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
