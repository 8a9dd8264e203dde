"""best_weights_alias.py, corrected."""

from __future__ import annotations

import copy

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    x_val, y_val = torch.randn(32, 4), torch.randn(32, 1)
    lowest, best = float("inf"), None
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(x_val), y_val).item()
        if loss < lowest:
            lowest, best = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    with torch.no_grad():
        restored = nn.functional.mse_loss(model(x_val), y_val).item()
    print(f"best {lowest:.4f}, restored {restored:.4f}")


if __name__ == "__main__":
    main()
