import torch
import torch.nn.functional as F
from torch import nn


class SmallConvNet(nn.Module):
    def __init__(self, n_classes=6):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.fc1 = nn.Linear(24 * 9, 48)
        self.fc2 = nn.Linear(48, n_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def ternarize(data, w_p, w_n, threshold):
    delta = threshold * data.abs().max()
    return w_p * (data > delta).float() - w_n * (data < -delta).float()


class TernaryQuantizer:
    def __init__(self, model, names, lr, lr_scales, threshold=0.05):
        parameters = dict(model.named_parameters())
        self.threshold = threshold
        self.kernels = [parameters[name] for name in names]
        self.full_precision = [k.detach().clone().requires_grad_() for k in self.kernels]
        self.scales = []
        for kernel in self.full_precision:
            size = kernel.detach().abs().mean().item()
            self.scales.append(torch.tensor([size, size], requires_grad=True))
        self.opt_full = torch.optim.Adam(self.full_precision, lr=lr)
        self.opt_scales = torch.optim.Adam(self.scales, lr=lr_scales)

    @torch.no_grad()
    def quantize(self):
        for kernel, full, scale in zip(self.kernels, self.full_precision, self.scales):
            kernel.copy_(ternarize(full, scale[0], scale[1], self.threshold))

    @torch.no_grad()
    def get_grads(self, full, grad, scale):
        delta = self.threshold * full.abs().max()
        a = (full > delta).float()
        b = (full < -delta).float()
        c = 1.0 - a - b
        full_grad = a * grad * scale[0] + b * grad * scale[1] + c * grad
        scale_grad = torch.stack([(a * grad).sum(), -(b * grad).sum()])
        return full_grad, scale_grad

    def step(self):
        for kernel, full, scale in zip(self.kernels, self.full_precision, self.scales):
            full.grad, scale.grad = self.get_grads(full, kernel.grad, scale)
        self.opt_full.step()
        self.opt_scales.step()
        self.quantize()


def make_shapes(n, n_classes, generator):
    bases = torch.randn(n_classes, 1, 12, 12, generator=torch.Generator().manual_seed(11))
    y = torch.randint(0, n_classes, (n,), generator=generator)
    x = bases[y] + 1.0 * torch.randn(n, 1, 12, 12, generator=generator)
    return x, y


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


def pretrain(model, x, y):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(15):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(5)
    x, y = make_shapes(600, 6, generator)
    x_test, y_test = make_shapes(600, 6, generator)
    model = SmallConvNet()
    pretrain(model, x[:64], y[:64])
    print(f"full precision accuracy {accuracy(model, x_test, y_test):.3f}")

    quantized = ["conv2.weight", "fc1.weight"]
    quantizer = TernaryQuantizer(model, quantized, lr=1e-3, lr_scales=1e-3)
    rest = [p for name, p in model.named_parameters() if name not in quantized]
    optimizer = torch.optim.Adam(rest, lr=1e-4)
    quantizer.quantize()
    print(f"ternary accuracy at start {accuracy(model, x_test, y_test):.3f}")
    for epoch in range(6):
        order = torch.randperm(len(x))
        for batch in order.split(50):
            model.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            quantizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"ternary accuracy {accuracy(model, x_test, y_test):.3f}")
    print(f"train loss {F.cross_entropy(model(x), y).item():.4f}")


if __name__ == "__main__":
    main()
