import torch
import torch.nn as nn
import torch.nn.functional as F


def batch_norm2d(x, gamma, beta, running_mean, running_var, training, momentum=0.1, eps=1e-5):
    if training:
        mean = x.mean(dim=(0, 2, 3))
        var = x.var(dim=(0, 2, 3), unbiased=False)
        n = x.numel() / x.shape[1]
        with torch.no_grad():
            running_mean = (1 - momentum) * running_mean + momentum * mean
            running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
    else:
        mean, var = running_mean, running_var
    scale = gamma / torch.sqrt(var + eps)
    out = (x - mean[None, :, None, None]) * scale[None, :, None, None] + beta[None, :, None, None]
    return out, running_mean, running_var


class Norm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        out, _, _ = batch_norm2d(x, self.gamma, self.beta, self.running_mean,
                                 self.running_var, self.training)
        return out


class DepthwiseSeparable(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.depthwise = nn.Conv2d(cin, cin, 3, stride, 1, groups=cin, bias=False)
        self.bn1 = Norm(cin)
        self.pointwise = nn.Conv2d(cin, cout, 1, bias=False)
        self.bn2 = Norm(cout)

    def forward(self, x):
        x = F.relu6(self.bn1(self.depthwise(x)))
        return F.relu6(self.bn2(self.pointwise(x)))


class MobileNetV1(nn.Module):
    def __init__(self, num_classes=3, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn = Norm(width)
        self.blocks = nn.Sequential(DepthwiseSeparable(width, 2 * width, 2),
                                    DepthwiseSeparable(2 * width, 2 * width, 2))
        self.fc = nn.Linear(2 * width, num_classes)

    def forward(self, x):
        x = F.relu6(self.bn(self.stem(x)))
        x = self.blocks(x)
        return self.fc(x.mean(dim=(2, 3)))


class SyntheticCifar:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 3, (n,), generator=g)
        axis = torch.arange(12).float()
        freq = (0.5 + 0.5 * self.y.float())[:, None, None]
        phase = 6.28 * torch.rand(n, 1, 1, generator=g)
        wave = torch.sin(freq * (axis[:, None] + axis[None]) + phase)
        tint = torch.rand(n, 3, 1, 1, generator=g) + 0.5
        noise = 0.4 * torch.randn(n, 3, 12, 12, generator=g)
        self.x = 4.0 + 2.0 * (tint * wave.unsqueeze(1) + noise)

    def loader(self, batch_size, shuffle=False):
        order = torch.randperm(len(self.y)) if shuffle else torch.arange(len(self.y))
        for idx in order.split(batch_size):
            yield self.x[idx], self.y[idx]


def train_one_epoch(model, data, optimizer, batch_size=32):
    model.train()
    total, hits = 0.0, 0
    for x, y in data.loader(batch_size, shuffle=True):
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
        hits += (logits.argmax(1) == y).sum().item()
    return total / len(data.y), hits / len(data.y)


@torch.no_grad()
def validate(model, data, batch_size=64):
    model.eval()
    total, hits = 0.0, 0
    for x, y in data.loader(batch_size):
        logits = model(x)
        total += F.cross_entropy(logits, y, reduction="sum").item()
        hits += (logits.argmax(1) == y).sum().item()
    return total / len(data.y), hits / len(data.y)


def main():
    torch.manual_seed(0)
    train_set, val_set = SyntheticCifar(320, 1), SyntheticCifar(128, 2)
    model = MobileNetV1()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    for epoch in range(6):
        loss, acc = train_one_epoch(model, train_set, optimizer)
        val_loss, val_acc = validate(model, val_set)
        scheduler.step()
        print(f"epoch {epoch} train {loss:.4f} {acc:.3f} val {val_loss:.4f} {val_acc:.3f}")


if __name__ == "__main__":
    main()
