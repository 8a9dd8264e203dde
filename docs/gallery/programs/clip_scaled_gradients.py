"""Clipping a gradient that is 65,536 times too large.

Report: https://github.com/milesial/Pytorch-UNet/pull/470

With a gradient scaler, what `backward()` leaves is multiplied by the scale. Clipping to a norm of 1 at that
point leaves next to nothing once the scaler has divided again: training is very slow, and looks like a bad
learning rate. The same was reported of at least six trainers.
"""

from __future__ import annotations

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Conv2d(1, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 1, 8, 8)).pow(2).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"gradient {model.weight.grad.norm():.1e}")


if __name__ == "__main__":
    main()
