from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class VQConfig:
    n_embed: int = 32
    dim: int = 8
    codebook_weight: float = 0.5
    steps: int = 200
    batch_size: int = 32
    lr: float = 3e-3


class VectorQuantizer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.codebook_weight = cfg.codebook_weight
        self.codebook = nn.Embedding(cfg.n_embed, cfg.dim)
        nn.init.uniform_(self.codebook.weight, -1.0 / cfg.n_embed, 1.0 / cfg.n_embed)

    def forward(self, inputs):
        b, c, h, w = inputs.shape
        flat = inputs.permute(0, 2, 3, 1).reshape(-1, c)
        dist = (flat.pow(2).sum(1, keepdim=True)
                - 2 * flat @ self.codebook.weight.t()
                + self.codebook.weight.pow(2).sum(1))
        indices = dist.argmin(1)
        quantize = self.codebook(indices)
        commit_loss = F.mse_loss(flat, quantize.detach())
        codebook_loss = F.mse_loss(quantize, flat.detach())
        quantize = flat + (quantize - flat).detach()
        loss = commit_loss + self.codebook_weight * codebook_loss
        quantize = quantize.reshape(b, h, w, c).permute(0, 3, 1, 2)
        return quantize, loss, indices.reshape(b, h, w)


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.body = nn.Sequential(nn.ReLU(), nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(), nn.Conv2d(ch, ch, 1))

    def forward(self, x):
        return x + self.body(x)


class VQVAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 4, stride=2, padding=1), ResBlock(16),
                                     nn.Conv2d(16, cfg.dim, 4, stride=2, padding=1))
        self.quantizer = VectorQuantizer(cfg)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(cfg.dim, 16, 4, stride=2, padding=1), ResBlock(16),
                                     nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1))

    def forward(self, x):
        quantized, vq_loss, indices = self.quantizer(self.encoder(x))
        return self.decoder(quantized), vq_loss, indices


def shapes(n):
    axis = torch.arange(16).float()
    cy, cx = torch.rand(2, n, 1, 1) * 8 + 4
    r = torch.rand(n, 1, 1) * 3 + 2
    dist = ((axis[:, None] - cy) ** 2 + (axis[None] - cx) ** 2).sqrt()
    disc = (dist < r).float()
    square = ((axis[:, None] - cy).abs().maximum((axis[None] - cx).abs()) < r).float()
    which = (torch.rand(n, 1, 1) < 0.5).float()
    tone = 0.3 + 0.7 * torch.rand(n, 1, 1)
    return (tone * (which * disc + (1 - which) * square)).unsqueeze(1)


def perplexity(indices, n_embed):
    p = torch.bincount(indices.flatten(), minlength=n_embed).float()
    p = p / p.sum()
    return torch.exp(-(p * (p + 1e-10).log()).sum()).item()


def fit(cfg):
    model = VQVAE(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0)
    for step in range(1, cfg.steps + 1):
        images = shapes(cfg.batch_size)
        recon, vq_loss, indices = model(images)
        rec_loss = F.mse_loss(recon, images)
        loss = rec_loss + vq_loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} rec {rec_loss.item():.4f} vq {vq_loss.item():.4f} "
                  f"ppl {perplexity(indices, cfg.n_embed):.2f}")
    return model


def main():
    torch.manual_seed(0)
    fit(VQConfig())


if __name__ == "__main__":
    main()
