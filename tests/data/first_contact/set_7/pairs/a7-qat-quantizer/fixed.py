import torch
import torch.nn as nn
import torch.nn.functional as F


def update_ema(biased, value, decay):
    return biased * decay + (1 - decay) * value


class FakeQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, zero_point, qmin, qmax):
        q = torch.round(x / scale + zero_point)
        ctx.save_for_backward((q >= qmin) & (q <= qmax))
        return (q.clamp(qmin, qmax) - zero_point) * scale

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None, None, None, None


class QuantWrapper(nn.Module):
    def __init__(self, module, bits=4, ema_decay=0.9, quant_start_step=20):
        super().__init__()
        self.module = module
        self.bits, self.ema_decay, self.quant_start_step = bits, ema_decay, quant_start_step
        self.qmin, self.qmax = 0, 2 ** bits - 1
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("tracked_min", torch.zeros(1))
        self.register_buffer("tracked_max", torch.zeros(1))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("zero_point", torch.zeros(1))

    def update_range(self, output):
        low, high = output.detach().min(), output.detach().max()
        if self.steps.item() <= 1:
            self.tracked_min.copy_(low)
            self.tracked_max.copy_(high)
        else:
            self.tracked_min.copy_(update_ema(self.tracked_min, low, self.ema_decay))
            self.tracked_max.copy_(update_ema(self.tracked_max, high, self.ema_decay))
        rmin = self.tracked_min.clamp(max=0.0)
        rmax = self.tracked_max.clamp(min=0.0)
        self.scale.copy_((rmax - rmin).clamp(min=1e-6) / (self.qmax - self.qmin))
        self.zero_point.copy_(torch.round(self.qmin - rmin / self.scale).clamp(self.qmin, self.qmax))

    def forward(self, x):
        out = self.module(x)
        if self.training:
            self.steps += 1
            self.update_range(out)
        if self.steps.item() < self.quant_start_step:
            return out
        return FakeQuant.apply(out, self.scale, self.zero_point, self.qmin, self.qmax)


class ConvNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 4, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.adaptive_max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


class QATQuantizer:
    def __init__(self, model, config_list):
        self.model, self.config_list = model, config_list

    def compress(self):
        for config in self.config_list:
            for name, child in list(self.model.named_children()):
                if type(child).__name__ in config["op_types"]:
                    setattr(self.model, name, QuantWrapper(child, config["bits"]))
        return self.model


def textures(n, gain=1.0):
    y = torch.randint(0, 4, (n,))
    axis = torch.arange(8).float()
    freq = (y + 1).float()[:, None, None] * 0.6
    phase = 6 * torch.rand(n, 1, 1)
    img = torch.sin(freq * axis[:, None] + phase) * torch.cos(freq * axis[None])
    return gain * (img + 0.9 * torch.randn(n, 8, 8)).unsqueeze(1), y


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    hits = [(model(x).argmax(1) == y).float().mean() for x, y in batches]
    return torch.stack(hits).mean().item()


def train_epoch(model, optimizer, iters=25):
    model.train()
    total = 0.0
    for _ in range(iters):
        x, y = textures(32)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / iters


def main():
    torch.manual_seed(0)
    model = QATQuantizer(ConvNet(), [{"op_types": ["Conv2d"], "bits": 4}]).compress()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    clean = [textures(64) for _ in range(8)]
    bright = [textures(64, gain=6.0) for _ in range(8)]
    for epoch in range(6):
        loss = train_epoch(model, optimizer)
        acc_bright = evaluate(model, bright)
        acc = evaluate(model, clean)
        print(f"epoch {epoch} loss {loss:.4f} clean {acc:.3f} bright {acc_bright:.3f} scale {model.conv2.scale.item():.3f}")


if __name__ == "__main__":
    main()
