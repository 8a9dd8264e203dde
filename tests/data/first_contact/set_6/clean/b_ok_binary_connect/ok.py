"""BinaryConnect: binary weights in forward and backward, real ones in the update."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class BinOp:
    """Swaps the weights of the inner layers for their signs and back."""

    def __init__(self, model):
        layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv1d))]
        self.targets = [m.weight for m in layers[1:-1]]
        self.saved = [w.data.clone() for w in self.targets]
        self.scales = [None] * len(self.targets)

    def _reduce(self, w):
        dims = tuple(range(1, w.dim()))
        return w.abs().mean(dim=dims, keepdim=True)

    def binarization(self):
        for i, w in enumerate(self.targets):
            w.data.clamp_(-1.0, 1.0)
            self.saved[i].copy_(w.data)
            self.scales[i] = self._reduce(w.data)
            w.data.copy_(torch.sign(w.data) * self.scales[i])

    def restore(self):
        for w, s in zip(self.targets, self.saved):
            w.data.copy_(s)

    def update_binary_grad(self):
        for w, s, scale in zip(self.targets, self.saved, self.scales):
            inside = (s.abs() <= 1.0).to(w.dtype)
            n = s[0].numel()
            sign = torch.sign(s)
            through_scale = (w.grad * sign).sum(
                dim=tuple(range(1, s.dim())), keepdim=True) / n * sign
            w.grad.copy_(w.grad * inside * scale + through_scale)


class KeywordNet(nn.Module):
    def __init__(self, n_mels=12, classes=5):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(n_mels, 32, 3, padding=1), nn.BatchNorm1d(32), nn.Hardtanh(),
            nn.Conv1d(32, 32, 3, padding=1, bias=False), nn.BatchNorm1d(32), nn.Hardtanh(),
            nn.Conv1d(32, 48, 3, padding=1, bias=False), nn.BatchNorm1d(48), nn.Hardtanh())
        self.classifier = nn.Linear(48, classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean(dim=2))


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    templates = torch.randn(5, 12, 20, generator=torch.Generator().manual_seed(50))
    y = torch.randint(0, 5, (n,), generator=g)
    return templates[y] + 1.2 * torch.randn(n, 12, 20, generator=g), y


def train_epoch(model, bin_op, optimizer, x, y, batch_size=32):
    model.train()
    order = torch.randperm(len(x))
    total = 0.0
    for i in range(0, len(x), batch_size):
        idx = order[i:i + batch_size]
        bin_op.binarization()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[idx]), y[idx])
        loss.backward()
        bin_op.restore()
        bin_op.update_binary_grad()
        optimizer.step()
        total += loss.item() * len(idx)
    return total / len(x)


def test(model, bin_op, x, y):
    model.eval()
    bin_op.binarization()
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    bin_op.restore()
    return acc


def main():
    torch.manual_seed(0)
    x, y = make_data(512, 0)
    tx, ty = make_data(200, 1)
    model = KeywordNet()
    bin_op = BinOp(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for epoch in range(8):
        loss = train_epoch(model, bin_op, optimizer, x, y)
        scheduler.step()
        print(f"epoch {epoch}  loss {loss:.4f}  accuracy {test(model, bin_op, tx, ty):.3f}")
    return model


if __name__ == "__main__":
    main()
