"""An argument that no longer does anything.

Report: https://github.com/pytorch/pytorch/issues/4932

`Variable(x, volatile=True)` used to switch recording off for all that was computed from it. Since torch 0.4 it
does nothing but warn, so the validation loop of an example recorded graphs, and the memory of a GPU filled up.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Variable


def validate(model, batches):
    model.eval()
    return [model(Variable(x, volatile=True)) for x in batches]


def main():
    torch.manual_seed(0)
    outputs = validate(nn.Linear(8, 2), torch.randn(4, 3, 8))
    print("recorded:", outputs[0].requires_grad)


if __name__ == "__main__":
    main()
