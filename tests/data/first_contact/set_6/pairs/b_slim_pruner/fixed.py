"""Sparsity training of batch norm scales, then channel pruning."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModuleWrapper(nn.Module):
    """Multiplies the scale of the wrapped norm layer with a mask."""

    def __init__(self, module, name):
        super().__init__()
        self.module = module
        self.name = name
        self.register_buffer("weight_mask", torch.ones_like(module.weight))

    def forward(self, x):
        return F.batch_norm(
            x, self.module.running_mean, self.module.running_var,
            self.module.weight * self.weight_mask, self.module.bias * self.weight_mask,
            self.module.training, self.module.momentum, self.module.eps)


class SlimPruner:
    def __init__(self, model, trainer, criterion, scale=0.02, sparsity=0.5):
        self.model, self.trainer = model, trainer
        self.criterion = criterion
        self.scale, self.sparsity = scale, sparsity
        self._wrap(model)

    def _wrap(self, model, prefix=""):
        for name, child in list(model.named_children()):
            full = f"{prefix}{name}"
            if isinstance(child, nn.BatchNorm2d):
                setattr(model, name, ModuleWrapper(child, full))
            else:
                self._wrap(child, full + ".")

    def get_modules_wrapper(self):
        return {m.name: m for m in self.model.modules() if isinstance(m, ModuleWrapper)}

    def criterion_patch(self, criterion):
        def patched_criterion(output, target):
            sum_l1 = 0
            for wrapper in self.get_modules_wrapper().values():
                sum_l1 += torch.norm(wrapper.module.weight, p=1)
            return criterion(output, target) + self.scale * sum_l1
        return patched_criterion

    def compress(self):
        self.trainer(self.model, self.criterion_patch(self.criterion))
        wrappers = self.get_modules_wrapper()
        scales = torch.cat([w.module.weight.detach().abs() for w in wrappers.values()])
        threshold = scales.sort().values[int(len(scales) * self.sparsity)]
        for wrapper in wrappers.values():
            wrapper.weight_mask.copy_((wrapper.module.weight.detach().abs() > threshold).float())
        return {n: w.weight_mask for n, w in wrappers.items()}


class ConvNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Linear(24 * 4, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def make_images(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    x = 0.4 * torch.randn(n, 1, 12, 12, generator=g)
    for i, c in enumerate(y.tolist()):
        r, col = divmod(c, 2)
        x[i, 0, r * 6 + 1:r * 6 + 5, col * 6 + 1:col * 6 + 5] += 0.8
    return x, y


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    x, y = make_images(384, 0)
    tx, ty = make_images(200, 1)

    def trainer(model, criterion, epochs=10):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for epoch in range(epochs):
            model.train()
            order = torch.randperm(len(x))
            for i in range(0, len(x), 48):
                idx = order[i:i + 48]
                optimizer.zero_grad()
                loss = criterion(model(x[idx]), y[idx])
                loss.backward()
                optimizer.step()
            if epoch % 3 == 0:
                print(f"epoch {epoch}  loss {loss.item():.4f}")

    model = ConvNet()
    pruner = SlimPruner(model, trainer, F.cross_entropy)
    masks = pruner.compress()
    kept = {n: int(m.sum()) for n, m in masks.items()}
    print(f"kept {kept}  accuracy after pruning {evaluate(model, tx, ty):.3f}")
    return model, pruner


if __name__ == "__main__":
    main()
