"""Softmax plus centre loss; the centres have their own optimizer and learning rate."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class CenterLoss(nn.Module):
    def __init__(self, num_classes, feat_dim):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(num_classes, feat_dim))

    def forward(self, x, labels):
        return (x - self.centers[labels]).pow(2).sum(1).clamp(1e-12, 1e6).mean()


class ConvNet(nn.Module):
    def __init__(self, d_in, feat, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d_in, 32), nn.PReLU(), nn.Linear(32, feat), nn.PReLU())
        self.fc = nn.Linear(feat, classes)

    def forward(self, x):
        h = self.body(x)
        return h, self.fc(h)


def data(n, seed, classes=5, d=10):
    proto = torch.randn(classes, d, generator=torch.Generator().manual_seed(9))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return proto[y] + 0.6 * torch.randn(n, d, generator=g), y


def train_epoch(model, center, opt_model, opt_cent, x, y, weight_cent):
    model.train()
    total = 0.0
    for idx in torch.randperm(len(x)).split(32):
        features, outputs = model(x[idx])
        loss_xent = F.cross_entropy(outputs, y[idx])
        loss_cent = center(features, y[idx]) * weight_cent
        loss = loss_xent + loss_cent
        opt_model.zero_grad()
        opt_cent.zero_grad()
        loss.backward()
        opt_model.step()
        for param in center.parameters():
            param.grad.data *= 1.0 / weight_cent
        opt_cent.step()
        total += loss.item()
    return total


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x)[1].argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    x, y = data(320, 1)
    xt, yt = data(200, 2)
    model, center = ConvNet(10, 2, 5), CenterLoss(5, 2)
    opt_model = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    opt_cent = torch.optim.SGD(center.parameters(), lr=0.5)
    sched = torch.optim.lr_scheduler.StepLR(opt_model, step_size=6, gamma=0.5)
    for epoch in range(12):
        loss = train_epoch(model, center, opt_model, opt_cent, x, y, weight_cent=0.1)
        sched.step()
        if epoch % 4 == 3:
            print(f"epoch {epoch + 1}: loss {loss:.3f} test acc {accuracy(model, xt, yt):.3f}")
    return accuracy(model, xt, yt)


if __name__ == "__main__":
    main()
