"""The first learning rate is never used.

Report: https://github.com/michuanhaohao/reid-strong-baseline/issues/190

A handler steps the scheduler when an epoch begins. Since torch 1.1 a schedule moves on after the
optimizer's step, so the whole schedule comes one epoch early and the warm-up loses its first value. torch
warns, once, in a log that is full of warnings; the question on the issue was whether to worry.
"""

from __future__ import annotations

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates = []
    for _ in range(4):
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
    print("learning rates", rates)


if __name__ == "__main__":
    main()
