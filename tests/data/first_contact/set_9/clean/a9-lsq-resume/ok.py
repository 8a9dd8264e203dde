import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


def grad_scale(x, scale):
    return (x - x * scale).detach() + x * scale


def round_pass(x):
    return (x.round() - x).detach() + x


class LsqQuantizer(nn.Module):
    def __init__(self, bits, signed):
        super().__init__()
        self.low = -(2 ** (bits - 1)) if signed else 0
        self.high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
        self.step = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("ready", torch.tensor(False))

    @torch.no_grad()
    def calibrate(self, x):
        self.step.copy_(2 * x.abs().mean() / math.sqrt(self.high))
        self.ready.fill_(True)

    def forward(self, x):
        if not self.ready:
            self.calibrate(x)
        step = grad_scale(self.step, 1.0 / math.sqrt(self.high * x.numel()))
        return round_pass((x / step).clamp(self.low, self.high)) * step


class QConv2d(nn.Conv2d):
    def __init__(self, *args, w_bits=3, a_bits=3, **kwargs):
        super().__init__(*args, **kwargs)
        self.q_w = LsqQuantizer(w_bits, signed=True)
        self.q_a = LsqQuantizer(a_bits, signed=False)

    def forward(self, x):
        return self._conv_forward(self.q_a(x), self.q_w(self.weight), self.bias)


class Net(nn.Module):
    def __init__(self, width=12, classes=4):
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv = QConv2d(width, width, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.stem(x)))
        x = F.relu(self.bn2(self.conv(x)))
        return self.fc(x.mean(dim=(2, 3)))


def build(lr, epochs):
    model = Net()
    steps = [p for n, p in model.named_parameters() if n.endswith(".step")]
    rest = [p for n, p in model.named_parameters() if not n.endswith(".step")]
    optimizer = torch.optim.SGD(
        [{"params": rest, "weight_decay": 5e-4}, {"params": steps, "lr": lr, "weight_decay": 0.0}],
        lr=lr,
        momentum=0.9,
    )
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)


class Checkpointer:
    def __init__(self):
        self.blob = None

    def save(self, epoch, **parts):
        self.blob = {"epoch": epoch}
        for name, part in parts.items():
            self.blob[name] = copy.deepcopy(part.state_dict())

    def restore(self, **parts):
        for name, part in parts.items():
            part.load_state_dict(self.blob[name])
        return self.blob["epoch"] + 1


def stripes(n, generator):
    y = torch.randint(0, 4, (n,), generator=generator)
    grid = torch.arange(10).float()
    angle = y.float() * math.pi / 4
    proj = angle.cos()[:, None, None] * grid[None, None] + angle.sin()[:, None, None] * grid[None, :, None]
    x = torch.stack([proj.sin(), proj.cos()], dim=1)
    return x + 0.6 * torch.randn(n, 2, 10, 10, generator=generator), y


def train_epoch(model, optimizer, images, labels):
    model.train()
    total = 0.0
    for idx in torch.randperm(len(images)).split(32):
        loss = F.cross_entropy(model(images[idx]), labels[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(idx)
    return total / len(images)


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    return (model(images).argmax(1) == labels).float().mean().item()


def main():
    torch.manual_seed(20)
    gen = torch.Generator().manual_seed(20)
    images, labels = stripes(256, gen)
    held = stripes(128, gen)
    checkpointer, epochs, stop_after = Checkpointer(), 6, 3
    model, optimizer, scheduler = build(0.05, epochs)
    for epoch in range(stop_after):
        loss = train_epoch(model, optimizer, images, labels)
        scheduler.step()
        checkpointer.save(epoch, model=model, optimizer=optimizer, scheduler=scheduler)
        print(epoch, round(loss, 4), round(accuracy(model, *held), 3))
    model, optimizer, scheduler = build(0.05, epochs)
    first = checkpointer.restore(model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in range(first, epochs):
        loss = train_epoch(model, optimizer, images, labels)
        scheduler.step()
        print(epoch, round(loss, 4), round(accuracy(model, *held), 3), round(model.conv.q_w.step.item(), 4))


if __name__ == "__main__":
    main()
