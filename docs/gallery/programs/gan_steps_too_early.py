"""The critic steps while the generator's backward still needs it.

Report: https://github.com/pytorch/pytorch/issues/39141

A small GAN from a tutorial computes both losses, and then takes both steps: the discriminator's first.
Its step writes into the weights through which the generator's loss was computed. Until torch 1.5 an
optimizer's step did not count as a write, and the generator was trained with a gradient through weights
that its loss had never seen. Now it raises, and names a tensor by its shape alone.
"""

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
        on_real, on_fake = critic(real), critic(fake)
        loss_critic = -(torch.log(on_real) + torch.log(1 - on_fake)).mean()
        loss_artist = torch.log(1 - on_fake).mean()

        opt_critic.zero_grad()
        loss_critic.backward(retain_graph=True)
        opt_critic.step()

        opt_artist.zero_grad()
        loss_artist.backward()
        opt_artist.step()


if __name__ == "__main__":
    main()
