"""eval_forever.py, corrected."""

from __future__ import annotations

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            loss = self.model(torch.randn(16, 8)).pow(2).mean().item()
        self.model.train()
        return loss

    def train_epoch(self):
        self.model.train()
        for iteration in range(12):
            if iteration == 4:
                self.validate()
            self.optimizer.zero_grad()
            self.model(torch.randn(16, 8)).pow(2).mean().backward()
            self.optimizer.step()


def main():
    torch.manual_seed(0)
    trainer = Trainer()
    for _ in range(2):
        trainer.train_epoch()
    print("training mode:", trainer.model.training)


if __name__ == "__main__":
    main()
