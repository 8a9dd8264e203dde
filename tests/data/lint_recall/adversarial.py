"""Train a generator against a discriminator."""

from __future__ import annotations

import torch
from torch import nn

generator = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
discriminator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4)


def train(loader):
    for real in loader:
        noise = torch.randn(len(real), 8)
        fake = generator(noise)
        valid, wrong = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        optimizer_d.zero_grad()
        d_loss = criterion(discriminator(real), valid)
        d_loss = d_loss + criterion(discriminator(fake.detach()), wrong)
        d_loss.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        g_loss = criterion(discriminator(fake), valid)
        g_loss.backward()
        optimizer_g.step()
