import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def grad_scale(x, scale):
    y = x * scale
    return (x - y).detach() + y


def round_pass(x):
    return (x.round() - x).detach() + x


class LsqQuantizer(nn.Module):
    def __init__(self, bits, signed, momentum=0.1):
        super().__init__()
        self.qn, self.qp = (-2 ** (bits - 1), 2 ** (bits - 1) - 1) if signed else (0, 2 ** bits - 1)
        self.step_size = nn.Parameter(torch.ones(1))
        self.register_buffer("initialized", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("mean_abs", torch.zeros(1))
        self.momentum = momentum

    @torch.no_grad()
    def observe(self, x):
        level = x.abs().mean()
        if not self.initialized:
            self.step_size.copy_(2 * level / math.sqrt(self.qp))
            self.mean_abs.copy_(level)
            self.initialized.fill_(True)
        else:
            self.mean_abs.lerp_(level, self.momentum)

    def forward(self, x):
        if self.training:
            self.observe(x.detach())
        g = 1.0 / math.sqrt(x.numel() * self.qp)
        step = grad_scale(self.step_size, g)
        q = (x / step).clamp(self.qn, self.qp)
        return round_pass(q) * step


class QuantConv2d(nn.Conv2d):
    def __init__(self, *args, bits=4, **kwargs):
        super().__init__(*args, **kwargs)
        self.quant_w = LsqQuantizer(bits, signed=True)
        self.quant_a = LsqQuantizer(bits, signed=False)

    def forward(self, x):
        return F.conv2d(self.quant_a(x), self.quant_w(self.weight), self.bias,
                        self.stride, self.padding)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.conv1 = QuantConv2d(8, 16, 3, padding=1)
        self.conv2 = QuantConv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


def split_groups(model, lr, weight_decay):
    steps = [p for n, p in model.named_parameters() if n.endswith("step_size")]
    rest = [p for n, p in model.named_parameters() if not n.endswith("step_size")]
    return [{"params": rest, "lr": lr, "weight_decay": weight_decay},
            {"params": steps, "lr": 0.1 * lr, "weight_decay": 0.0}]


def gratings(n):
    y = torch.randint(0, 4, (n,))
    axis = torch.arange(10).float()
    f = 0.4 + 0.4 * y.float()[:, None, None]
    img = torch.sin(f * axis[:, None] + 6 * torch.rand(n, 1, 1)) + 0.2 * torch.randn(n, 10, 10)
    return img.unsqueeze(1), y


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(split_groups(model, 5e-3, 1e-4))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=120)
    x_val, y_val = gratings(256)
    for step in range(1, 121):
        model.train()
        x, y = gratings(32)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 40 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(x_val).argmax(1) == y_val).float().mean().item()
            print(f"step {step} loss {loss.item():.4f} acc {acc:.3f} s_w {model.conv1.quant_w.step_size.item():.4f}")


if __name__ == "__main__":
    main()
