"""Latent action model with a vector-quantised bottleneck: predicts the next frame from a discrete code."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LAMConfig:
    frame_dim: int = 12
    code_dim: int = 4
    n_codes: int = 8
    hidden: int = 48
    beta: float = 0.25
    vq_weight: float = 1.0
    lr: float = 2e-3
    batch_size: int = 64
    epochs: int = 6
    steps_per_epoch: int = 50
    seed: int = 8


class VectorQuantizer(nn.Module):
    def __init__(self, n_codes, dim):
        super().__init__()
        self.codebook = nn.Embedding(n_codes, dim)
        self.codebook.weight.data.uniform_(-1.0 / n_codes, 1.0 / n_codes)
        self.register_buffer("usage", torch.zeros(n_codes))

    def update_usage(self, indices):
        counts = torch.bincount(indices.flatten(), minlength=self.usage.numel()).float()
        self.usage.mul_(0.95).add_(counts, alpha=0.05)

    def forward(self, x):
        distance = torch.cdist(x, self.codebook.weight)
        indices = distance.argmin(-1)
        z = self.codebook(indices)
        if self.training:
            self.update_usage(indices)
        z_q = x + (z - x).detach()
        return z_q, z, x, indices


class LatentActionModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d, h = cfg.frame_dim, cfg.hidden
        self.encoder = nn.Sequential(nn.Linear(2 * d, h), nn.GELU(), nn.Linear(h, cfg.code_dim))
        self.vq = VectorQuantizer(cfg.n_codes, cfg.code_dim)
        self.decoder = nn.Sequential(nn.Linear(d + cfg.code_dim, h), nn.GELU(), nn.Linear(h, d))

    def encode(self, frames):
        z_e = self.encoder(torch.cat([frames[:, 0], frames[:, 1]], -1))
        z_q, z, _, indices = self.vq(z_e)
        return {"z_e": z_e, "z_q": z_q, "z": z, "indices": indices}

    def forward(self, frames):
        out = self.encode(frames)
        out["recon"] = self.decoder(torch.cat([frames[:, 0], out["z_q"]], -1))
        return out


class LossComputer:
    def __init__(self, cfg):
        self.cfg = cfg

    def __call__(self, out, frames):
        recon = F.mse_loss(out["recon"], frames[:, 1])
        z_q, z_e = out["z_q"], out["z_e"]
        codebook_loss = F.mse_loss(out["z"], z_e.detach())
        commit_loss = F.mse_loss(z_e, out["z"].detach())
        total = recon + self.cfg.vq_weight * (codebook_loss + self.cfg.beta * commit_loss)
        return total, {"recon": recon.item(), "codebook": codebook_loss.item(), "commit": commit_loss.item()}


class FramePairs:
    """Frames move along one of six directions; the direction is the hidden action."""

    def __init__(self, cfg, gen):
        self.gen, self.cfg = gen, cfg
        self.moves = torch.randn(6, cfg.frame_dim, generator=gen)

    def batch(self, n):
        x = torch.randn(n, self.cfg.frame_dim, generator=self.gen)
        a = torch.randint(0, 6, (n,), generator=self.gen)
        return torch.stack([x, 0.9 * x + self.moves[a]], 1)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.data = FramePairs(cfg, torch.Generator().manual_seed(cfg.seed))
        self.model = LatentActionModel(cfg)
        self.loss_fn = LossComputer(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.model.train()
            for _ in range(self.cfg.steps_per_epoch):
                frames = self.data.batch(self.cfg.batch_size)
                loss, logs = self.loss_fn(self.model(frames), frames)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
            if epoch % 2 == 0:
                print(epoch, {k: round(v, 4) for k, v in logs.items()}, "val", round(self.validate(), 4))

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        frames = self.data.batch(256)
        return F.mse_loss(self.model(frames)["recon"], frames[:, 1]).item()


def main():
    cfg = LAMConfig()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    start = trainer.model.vq.codebook.weight.detach().clone()
    trainer.fit()
    moved = (trainer.model.vq.codebook.weight.detach() - start).norm().item()
    result = {"val_recon": round(trainer.validate(), 4), "codebook_moved": round(moved, 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
