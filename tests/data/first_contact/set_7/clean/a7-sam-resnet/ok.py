import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm


class BasicBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, bias=False) if cin != cout else nn.Identity()

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.skip(x))


class ResNetLite(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.b1, self.b2 = BasicBlock(1, 8), BasicBlock(8, 16)
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        x = F.max_pool2d(self.b1(x), 2)
        return self.fc(self.b2(x).mean((2, 3)))


class SharpnessAware:
    """Steps at the worst nearby point; the base optimizer does the update."""

    def __init__(self, model, base_optimizer, rho=0.05):
        self.model, self.base, self.rho = model, base_optimizer, rho
        self.backup = {}

    def parameters(self):
        for group in self.base.param_groups:
            yield from group["params"]

    @torch.no_grad()
    def ascend(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters() if p.grad is not None]).norm()
        for p in self.parameters():
            if p.grad is None:
                continue
            self.backup[p] = p.data.clone()
            p.add_(p.grad, alpha=self.rho / (norm.item() + 1e-12))
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p in self.parameters():
            if p in self.backup:
                p.data.copy_(self.backup.pop(p))
        self.base.step()
        self.base.zero_grad()


def freeze_running_stats(model):
    for m in model.modules():
        if isinstance(m, _BatchNorm):
            m.saved_momentum, m.momentum = m.momentum, 0.0


def unfreeze_running_stats(model):
    for m in model.modules():
        if isinstance(m, _BatchNorm) and hasattr(m, "saved_momentum"):
            m.momentum = m.saved_momentum


def digits(n):
    y = torch.randint(0, 3, (n,))
    img = 0.5 * torch.randn(n, 1, 12, 12)
    for k, (r, c) in enumerate([(2, 2), (2, 7), (7, 4)]):
        img[y == k, :, r:r + 4, c:c + 4] += 1.0
    flip = torch.rand(n) < 0.1
    return img, torch.where(flip, torch.randint(0, 3, (n,)), y)


def main():
    torch.manual_seed(0)
    model = ResNetLite()
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    sam = SharpnessAware(model, base)
    scheduler = torch.optim.lr_scheduler.StepLR(base, step_size=20, gamma=0.5)
    x_val, y_val = digits(256)
    for step in range(1, 61):
        model.train()
        x, y = digits(32)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        sam.ascend()
        freeze_running_stats(model)
        F.cross_entropy(model(x), y).backward()
        unfreeze_running_stats(model)
        sam.descend()
        scheduler.step()
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                val = F.cross_entropy(model(x_val), y_val).item()
            print(f"step {step} loss {loss.item():.4f} val {val:.4f} lr {base.param_groups[0]['lr']:.4f}")


if __name__ == "__main__":
    main()
