"""Latent action model with a vector quantised bottleneck (toy version)."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    frame_dim: int = 24
    latent_dim: int = 8
    codes: int = 16
    batch_size: int = 64
    epochs: int = 4
    steps_per_epoch: int = 40
    lr: float = 2e-3
    beta: float = 0.25
    seed: int = 0


class VectorQuantizer(nn.Module):
    def __init__(self, codes, dim):
        super().__init__()
        self.codebook = nn.Embedding(codes, dim)
        nn.init.uniform_(self.codebook.weight, -1.0 / codes, 1.0 / codes)

    def forward(self, x):
        distances = torch.cdist(x, self.codebook.weight)
        indices = distances.argmin(dim=-1)
        z = self.codebook(indices)
        z_q = x + (z - x).detach()
        return z_q, z, x, indices


class LatentActionModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(2 * cfg.frame_dim, 64), nn.GELU(), nn.Linear(64, cfg.latent_dim)
        )
        self.vq = VectorQuantizer(cfg.codes, cfg.latent_dim)
        self.decoder = nn.Sequential(
            nn.Linear(cfg.frame_dim + cfg.latent_dim, 64), nn.GELU(), nn.Linear(64, cfg.frame_dim)
        )

    def encode(self, frame, next_frame):
        z_e = self.encoder(torch.cat([frame, next_frame], dim=-1))
        z_q, z, z_e, indices = self.vq(z_e)
        return {"z_q": z_q, "z": z, "z_e": z_e, "indices": indices}

    def forward(self, frame, next_frame):
        out = self.encode(frame, next_frame)
        out["recon"] = self.decoder(torch.cat([frame, out["z_q"]], dim=-1))
        return out


class VideoClips:
    """Frames that move along one of a few hidden directions."""

    def __init__(self, cfg, actions=8):
        self.cfg = cfg
        self.directions = torch.randn(actions, cfg.frame_dim)

    def batch(self):
        frame = torch.randn(self.cfg.batch_size, self.cfg.frame_dim)
        action = torch.randint(len(self.directions), (self.cfg.batch_size,))
        return frame, frame + self.directions[action]


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.data = VideoClips(cfg)
        self.model = LatentActionModel(cfg)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=0.0)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, cfg.epochs * cfg.steps_per_epoch
        )

    def losses(self, out, target):
        recon_loss = F.mse_loss(out["recon"], target)
        codebook_loss = F.mse_loss(out["z"], out["z_e"].detach())
        commit_loss = F.mse_loss(out["z_e"], out["z_q"].detach())
        return recon_loss, codebook_loss, commit_loss

    def train_step(self):
        frame, target = self.data.batch()
        out = self.model(frame, target)
        recon, codebook, commit = self.losses(out, target)
        loss = recon + codebook + self.cfg.beta * commit
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return recon.item(), out["indices"].unique().numel()

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            frame, target = self.data.batch()
            error = F.mse_loss(self.model(frame, target)["recon"], target).item()
        self.model.train()
        return error

    def fit(self):
        for epoch in range(self.cfg.epochs):
            for _ in range(self.cfg.steps_per_epoch):
                recon, used = self.train_step()
            print(f"epoch {epoch} recon {recon:.4f} codes {used} val {self.evaluate():.4f}")


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    trainer.fit()
    return {"val": trainer.evaluate()}


if __name__ == "__main__":
    main()
