"""Robust training with a KL term between clean and perturbed predictions."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class SmallConv(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )
        self.drop = nn.Dropout(0.2)
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.classifier(self.drop(self.features(x).flatten(1)))


def robust_loss(model, x_natural, y, optimizer, step_size=0.02, epsilon=0.08, perturb_steps=3, beta=4.0):
    criterion_kl = nn.KLDivLoss(reduction="sum")
    model.eval()
    batch_size = len(x_natural)
    x_adv = x_natural.detach() + 0.001 * torch.randn_like(x_natural)
    for _ in range(perturb_steps):
        x_adv.requires_grad_()
        with torch.enable_grad():
            loss_kl = criterion_kl(F.log_softmax(model(x_adv), dim=1), F.softmax(model(x_natural), dim=1))
        grad = torch.autograd.grad(loss_kl, [x_adv])[0]
        x_adv = x_adv.detach() + step_size * torch.sign(grad.detach())
        x_adv = torch.min(torch.max(x_adv, x_natural - epsilon), x_natural + epsilon)
        x_adv = torch.clamp(x_adv, 0.0, 1.0)
    x_adv = x_adv.detach()
    model.train()
    optimizer.zero_grad()
    logits = model(x_natural)
    loss_natural = F.cross_entropy(logits, y)
    loss_robust = criterion_kl(F.log_softmax(model(x_adv), dim=1), F.softmax(logits, dim=1)) / batch_size
    return loss_natural + beta * loss_robust


def synthetic_shapes(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    x = 0.2 * torch.rand(n, 1, 12, 12, generator=g)
    for i, c in enumerate(y.tolist()):
        r, col = divmod(c, 2)
        x[i, 0, 6 * r:6 * r + 5, 6 * col:6 * col + 5] += 0.6
    return TensorDataset(x, y)


def train_epoch(model, loader, optimizer, epoch):
    model.train()
    total = 0.0
    for x, y in loader:
        loss = robust_loss(model, x, y, optimizer)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(7)
    train_loader = DataLoader(synthetic_shapes(256, 0), batch_size=32, shuffle=True)
    test_loader = DataLoader(synthetic_shapes(128, 1), batch_size=64)
    model = SmallConv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=2e-4)
    for epoch in range(4):
        train_epoch(model, train_loader, optimizer, epoch)
        print(f"   test accuracy {evaluate(model, test_loader):.3f}")
    return model


if __name__ == "__main__":
    main()
