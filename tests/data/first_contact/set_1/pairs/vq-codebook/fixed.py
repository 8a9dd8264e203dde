"""VQ autoencoder with a straight-through bottleneck."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class VQConfig:
    codes: int = 16
    code_dim: int = 6
    beta: float = 0.25
    lr: float = 2e-3
    steps: int = 300
    batch: int = 64
    warmup: int = 20


class VectorQuantizer(nn.Module):
    def __init__(self, codes, dim):
        super().__init__()
        self.codebook = nn.Embedding(codes, dim)
        self.codebook.weight.data.uniform_(-1.0, 1.0)

    def forward(self, x):
        dist = torch.cdist(x, self.codebook.weight)
        indices = dist.argmin(dim=-1)
        z = self.codebook(indices)
        z_q = x + (z - x).detach()
        return z_q, z, x, indices


class Autoencoder(nn.Module):
    def __init__(self, cfg, dim=10):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, cfg.code_dim),
                                     nn.LayerNorm(cfg.code_dim, elementwise_affine=False))
        self.vq = VectorQuantizer(cfg.codes, cfg.code_dim)
        self.decoder = nn.Sequential(nn.Linear(cfg.code_dim, 32), nn.GELU(), nn.Linear(32, dim))
        self.beta = cfg.beta

    def encode(self, x):
        z_q, z, z_e, indices = self.vq(self.encoder(x))
        return z_q, z, z_e, indices

    def forward(self, x):
        z_q, z, z_e, indices = self.encode(x)
        recon = self.decoder(z_q)
        recon_loss = F.mse_loss(recon, x)
        codebook_loss = F.mse_loss(z, z_e.detach())
        commit_loss = F.mse_loss(z_e, z_q.detach())
        loss = recon_loss + codebook_loss + self.beta * commit_loss
        return {"loss": loss, "recon": recon_loss, "codebook": codebook_loss, "commit": commit_loss, "indices": indices}


class ShapeData:
    def __init__(self, seed, modes=12, dim=10):
        self.gen = torch.Generator().manual_seed(seed)
        g = torch.Generator().manual_seed(77)
        self.modes = 2.0 * torch.randn(modes, dim, generator=g)

    def batch(self, n):
        k = torch.randint(0, len(self.modes), (n,), generator=self.gen)
        return self.modes[k] + 0.1 * torch.randn(n, self.modes.size(1), generator=self.gen)


class Ema:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


@torch.no_grad()
def evaluate(model, data, n=512):
    model.eval()
    out = model(data.batch(n))
    model.train()
    return out["recon"].item(), out["indices"].unique().numel()


def train(cfg):
    model = Autoencoder(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.9, 0.99))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / cfg.warmup))
    ema = Ema(model)
    train_data, valid = ShapeData(1), ShapeData(2)
    first = model.vq.codebook.weight.detach().clone()
    for step in range(cfg.steps):
        out = model(train_data.batch(cfg.batch))
        opt.zero_grad()
        out["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        ema.update(model)
        if step % 100 == 0:
            print(f"step {step} loss {out['loss'].item():.4f} recon {out['recon'].item():.4f} "
                  f"codebook {out['codebook'].item():.4f}")
    recon, used = evaluate(model, valid)
    moved = (model.vq.codebook.weight.detach() - first).norm().item()
    return {"val_recon": recon, "codes_used": used, "codebook_moved": moved}


def main():
    torch.manual_seed(0)
    result = train(VQConfig())
    print(f"validation recon {result['val_recon']:.4f} with {result['codes_used']} codes")
    return result


if __name__ == "__main__":
    main()
