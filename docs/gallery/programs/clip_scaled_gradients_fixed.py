"""clip_scaled_gradients.py, corrected."""

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
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"gradient {model.weight.grad.norm():.1e}")


if __name__ == "__main__":
    main()
