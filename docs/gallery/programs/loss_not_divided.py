"""Accumulated, and never divided.

Report: https://github.com/karpathy/nanoGPT/issues/168

Gradients of several micro-batches are added up, and the loss of each is a mean over its own: the sum is as
many times too large as there are micro-batches. Adam hides most of that; the clipping that follows does not,
and neither does its epsilon.

Run: python loss_not_divided.py --check
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import gradcheck_suite as gs


def make():
    torch.manual_seed(0)
    model = nn.Linear(8, 4, bias=False)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def main():
    torch.manual_seed(1)
    batch = torch.randn(16, 8), torch.randint(4, (16,))
    if "--check" in sys.argv:
        report = gs.check_accumulation(make, train, batch, micro_batches=4)
        for finding in report.findings:
            print(f"{finding.code} [{finding.severity.value}] {finding.message}")
        return
    state = make()
    train(state, [(x, y) for x, y in zip(batch[0].split(4), batch[1].split(4), strict=True)], 4)
    print("trained")


if __name__ == "__main__":
    main()
