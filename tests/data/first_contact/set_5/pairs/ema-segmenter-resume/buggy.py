"""Instance masks on toy images, validated with an exponential moving average that ramps up; can be interrupted."""
import copy
import io
import math

import torch
from torch import nn


class ModelEMA(nn.Module):
    """Average of the weights; the decay grows from 0 to `decay` so that early weights are forgotten soon."""

    def __init__(self, model, decay=0.99, tau=20.0):
        super().__init__()
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        self.tau = tau
        self.updates = 0
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = self.decay * (1 - math.exp(-self.updates / self.tau))
        current = model.state_dict()
        for name, value in self.module.state_dict().items():
            if value.is_floating_point():
                value.mul_(d).add_(current[name], alpha=1 - d)
            else:
                value.copy_(current[name])


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.SiLU())


class Segmenter(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = conv_block(1, width)
        self.body = conv_block(width, width)
        self.mask = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x = self.stem(x)
        return self.mask(x + self.body(x))


class SegTrainer:
    def __init__(self, lr=0.05):
        self.model = Segmenter()
        self.ema = ModelEMA(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.step = 0

    def fit(self, batches):
        self.model.train()
        for images, masks in batches:
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(images), masks)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.ema.update(self.model)
            self.step += 1

    @torch.no_grad()
    def validate(self, images, masks):
        return nn.functional.binary_cross_entropy_with_logits(self.ema.module(images), masks).item()

    def save(self, file):
        torch.save({
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }, file)

    def load(self, file):
        ckpt = torch.load(file)
        self.model.load_state_dict(ckpt["model"])
        self.ema.load_state_dict(ckpt["ema"])
        self.optimizer.load_state_dict(ckpt["optimizer"])
        self.step = ckpt["step"]


def toy_batches(count, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        masks = (torch.rand(8, 1, 4, 4, generator=g) > 0.6).float().repeat_interleave(4, 2).repeat_interleave(4, 3)
        yield masks + 0.8 * torch.randn(8, 1, 16, 16, generator=g), masks


def main():
    torch.manual_seed(0)
    held_out = next(toy_batches(1, seed=77))
    first = SegTrainer()
    first.fit(toy_batches(60, seed=1))
    print(f"interrupted at step {first.step}, val {first.validate(*held_out):.4f}")
    file = io.BytesIO()
    first.save(file)
    file.seek(0)

    second = SegTrainer()
    second.load(file)
    print(f"resumed at step {second.step}, val {second.validate(*held_out):.4f}")
    second.fit(toy_batches(21, seed=2))
    print(f"finished at step {second.step}, val {second.validate(*held_out):.4f}")
    return second


if __name__ == "__main__":
    main()
