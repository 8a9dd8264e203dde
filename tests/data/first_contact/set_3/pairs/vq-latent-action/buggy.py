"""Latent action model: two frames -> a discrete latent action -> the next frame."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    obs_dim: int = 12
    latent_dim: int = 6
    num_codes: int = 8
    hidden: int = 32
    beta: float = 0.25
    lr: float = 3e-3
    batch_size: int = 64
    epochs: int = 6
    steps_per_epoch: int = 25
    seed: int = 0


class VectorQuantizer(nn.Module):
    def __init__(self, num_codes, dim):
        super().__init__()
        self.codebook = nn.Embedding(num_codes, dim)
        self.codebook.weight.data.uniform_(-1.0 / num_codes, 1.0 / num_codes)

    def forward(self, x):
        distance = torch.cdist(x, self.codebook.weight)
        indices = distance.argmin(dim=-1)
        z = self.codebook(indices)
        z_q = x + (z - x).detach()
        return z_q, z, x, indices


class LatentActionModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(2 * cfg.obs_dim, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.latent_dim)
        )
        self.vq = VectorQuantizer(cfg.num_codes, cfg.latent_dim)
        self.decoder = nn.Sequential(
            nn.Linear(cfg.obs_dim + cfg.latent_dim, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.obs_dim)
        )

    def encode(self, frames):
        z_e = self.encoder(frames.flatten(1))
        z_q, z, z_e, indices = self.vq(z_e)
        return {"z_q": z_q, "z": z, "z_e": z_e, "indices": indices}

    def forward(self, frames):
        out = self.encode(frames)
        out["recon"] = self.decoder(torch.cat([frames[:, 0], out["z_q"]], dim=-1))
        return out


class Clips:
    """Frames that move by one of a few hidden displacements."""

    def __init__(self, cfg):
        self.moves = torch.randn(cfg.num_codes, cfg.obs_dim)
        self.cfg = cfg

    def batch(self):
        first = torch.randn(self.cfg.batch_size, self.cfg.obs_dim)
        action = torch.randint(0, len(self.moves), (self.cfg.batch_size,))
        return torch.stack([first, first + self.moves[action]], dim=1)


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.data = Clips(cfg)
        self.model = LatentActionModel(cfg)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=0.0)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, cfg.epochs * cfg.steps_per_epoch
        )
        self.history = []

    def loss(self, frames):
        out = self.model(frames)
        recon = F.mse_loss(out["recon"], frames[:, 1])
        codebook = F.mse_loss(out["z_q"], out["z_e"].detach())
        commit = F.mse_loss(out["z_e"], out["z"].detach())
        return recon + codebook + self.cfg.beta * commit, recon

    def fit(self):
        for epoch in range(self.cfg.epochs):
            total = 0.0
            for _ in range(self.cfg.steps_per_epoch):
                loss, recon = self.loss(self.data.batch())
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.scheduler.step()
                total += recon.item()
            self.history.append(total / self.cfg.steps_per_epoch)
            print(f"epoch {epoch} recon {self.history[-1]:.4f} codes in use {self.codes_in_use()}")
        return self

    @torch.no_grad()
    def codes_in_use(self):
        self.model.eval()
        indices = self.model.encode(self.data.batch())["indices"]
        self.model.train()
        return indices.unique().numel()


def main():
    return Trainer(Config()).fit()


if __name__ == "__main__":
    main()
