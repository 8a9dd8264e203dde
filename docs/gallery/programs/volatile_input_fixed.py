"""volatile_input.py, corrected."""

from __future__ import annotations

import torch
from torch import nn


def validate(model, batches):
    model.eval()
    with torch.no_grad():
        return [model(x) for x in batches]


def main():
    torch.manual_seed(0)
    outputs = validate(nn.Linear(8, 2), torch.randn(4, 3, 8))
    print("recorded:", outputs[0].requires_grad)


if __name__ == "__main__":
    main()
