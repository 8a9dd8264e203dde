"""gan_steps_too_early.py, corrected."""

from __future__ import annotations

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    artist = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 15))
    critic = nn.Sequential(nn.Linear(15, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
    opt_artist = torch.optim.Adam(artist.parameters(), lr=1e-3)
    opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for _ in range(3):
        real = torch.randn(16, 15).sin()
        fake = artist(torch.randn(16, 5))
        on_real, on_fake = critic(real), critic(fake.detach())
        loss_critic = -(torch.log(on_real) + torch.log(1 - on_fake)).mean()

        opt_critic.zero_grad()
        loss_critic.backward()
        opt_critic.step()

        loss_artist = torch.log(1 - critic(fake)).mean()
        opt_artist.zero_grad()
        loss_artist.backward()
        opt_artist.step()


if __name__ == "__main__":
    main()
