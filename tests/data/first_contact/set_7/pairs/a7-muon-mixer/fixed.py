import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer


def zeropower_via_newtonschulz(grad, ns_steps=5, eps=1e-7):
    a, b, c = 3.4445, -4.7750, 2.0315
    ortho = grad.to(torch.float32, copy=True)
    transposed = ortho.size(0) > ortho.size(1)
    if transposed:
        ortho = ortho.T
    ortho.div_(ortho.norm().clamp(min=eps))
    for _ in range(ns_steps):
        gram = ortho @ ortho.T
        update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        ortho = torch.addmm(ortho, update, ortho, beta=a)
    if transposed:
        ortho = ortho.T
    return ortho


class Muon(Optimizer):
    def __init__(self, params, lr=1e-2, momentum=0.95, weight_decay=0.01, nesterov=False, ns_steps=5):
        defaults = dict(lr=lr, momentum=momentum, weight_decay=weight_decay,
                        nesterov=nesterov, ns_steps=ns_steps)
        super().__init__(params, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError("Muon only supports 2D parameters")

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buf = state["momentum_buffer"]
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buf, group["momentum"]) if group["nesterov"] else buf
                update = zeropower_via_newtonschulz(update, group["ns_steps"])
                ratio = math.sqrt(max(1.0, p.size(0) / p.size(1)))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * ratio)
        return loss


class PatchMixer(nn.Module):
    def __init__(self, patches=16, dim=24, classes=4):
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.token = nn.Linear(patches, patches, bias=False)
        self.channel = nn.Sequential(nn.Linear(dim, 48, bias=False), nn.GELU(), nn.Linear(48, dim, bias=False))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel(self.norm2(x))
        return self.head(x.mean(1))


def make_images(n, generator):
    y = torch.randint(0, 4, (n,), generator=generator)
    img = 0.9 * torch.randn(n, 8, 8, generator=generator)
    rows = torch.arange(8)
    for k in range(4):
        pattern = torch.sin(rows * (k + 1) * 0.8)[:, None] * torch.cos(rows * (k + 1) * 0.5)[None]
        img[y == k] += pattern
    patches = img.unfold(1, 2, 2).unfold(2, 2, 2).reshape(n, 16, 4)
    return patches, y


def build_optimizers(model):
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "head" not in n]
    ids = {id(p) for p in hidden}
    other = [p for p in model.parameters() if id(p) not in ids]
    return [Muon(hidden, lr=5e-3, momentum=0.95), torch.optim.AdamW(other, lr=3e-3)]


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(7)
    model = PatchMixer()
    optimizers = build_optimizers(model)
    x_val, y_val = make_images(512, generator)
    for step in range(1, 151):
        x, y = make_images(16, generator)
        loss = F.cross_entropy(model(x), y)
        for opt in optimizers:
            opt.zero_grad()
        loss.backward()
        for opt in optimizers:
            opt.step()
        if step % 50 == 0:
            with torch.no_grad():
                val = F.cross_entropy(model(x_val), y_val).item()
            print(f"step {step} train {loss.item():.4f} val {val:.4f}")


if __name__ == "__main__":
    main()
