"""Toy neural audio codec: convolutional encoder, residual vector quantizer, decoder."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class EuclideanCodebook(nn.Module):
    def __init__(self, dim, size, decay=0.95, eps=1e-5):
        super().__init__()
        self.decay, self.eps = decay, eps
        embed = torch.randn(size, dim) * 0.3
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("cluster_size", torch.ones(size))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1]).detach()
        ind = torch.cdist(flat, self.embed).argmin(dim=1)
        if self.training:
            onehot = F.one_hot(ind, self.embed.shape[0]).to(flat.dtype)
            self.cluster_size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
            self.embed_avg.mul_(self.decay).add_(onehot.t() @ flat, alpha=1 - self.decay)
            size = (self.cluster_size + self.eps).unsqueeze(1)
            self.embed.copy_(self.embed_avg / size)
        return F.embedding(ind, self.embed).view_as(x), ind


class VectorQuantization(nn.Module):
    def __init__(self, dim, size, commitment_weight=1.0):
        super().__init__()
        self.codebook = EuclideanCodebook(dim, size)
        self.commitment_weight = commitment_weight

    def forward(self, x):
        quantize, ind = self.codebook(x)
        loss = x.new_zeros(())
        if self.training:
            loss = self.commitment_weight * F.mse_loss(quantize.detach(), x)
            quantize = x + (quantize - x).detach()
        return quantize, ind, loss


class ResidualVectorQuantization(nn.Module):
    def __init__(self, num_quantizers, **kwargs):
        super().__init__()
        self.layers = nn.ModuleList(
            [VectorQuantization(**kwargs) for _ in range(num_quantizers)])

    def forward(self, x):
        quantized_out = 0.0
        residual = x
        losses, indices = [], []
        for layer in self.layers:
            quantized, ind, loss = layer(residual)
            quantized = quantized.detach()
            residual = residual - quantized
            quantized_out = quantized_out + quantized
            indices.append(ind)
            losses.append(loss)
        if self.training:
            quantized_out = x + (quantized_out - x).detach()
        return quantized_out, torch.stack(indices), torch.stack(losses)


class Codec(nn.Module):
    def __init__(self, dim=16, codebook_size=32, num_quantizers=4):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 16, 8, stride=4, padding=2), nn.ELU(),
            nn.Conv1d(16, dim, 8, stride=4, padding=2))
        self.quantizer = ResidualVectorQuantization(
            num_quantizers, dim=dim, size=codebook_size)
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(dim, 16, 8, stride=4, padding=2), nn.ELU(),
            nn.ConvTranspose1d(16, 1, 8, stride=4, padding=2))

    def forward(self, wav):
        emb = self.encoder(wav).transpose(1, 2)
        quantized, codes, commit = self.quantizer(emb)
        return self.decoder(quantized.transpose(1, 2)), codes, commit


def synth_batch(batch, length, generator):
    t = torch.arange(length) / 256.0
    freq = torch.rand(batch, 1, generator=generator) * 12 + 3
    phase = torch.rand(batch, 1, generator=generator) * 2 * math.pi
    wav = torch.sin(2 * math.pi * freq * t + phase)
    return (wav + 0.3 * torch.sin(4 * math.pi * freq * t)).unsqueeze(1)


def train(codec, steps=120, batch=16, length=256):
    g = torch.Generator().manual_seed(7)
    optimizer = torch.optim.Adam(codec.parameters(), lr=2e-3, betas=(0.5, 0.9))
    codec.train()
    for step in range(steps):
        wav = synth_batch(batch, length, g)
        rec, _, commit = codec(wav)
        loss = F.l1_loss(rec, wav) + commit.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            levels = " ".join(f"{c:.3f}" for c in commit.tolist())
            print(f"step {step:3d}  loss {loss.item():.4f}  commit {levels}")
    return codec


def main():
    torch.manual_seed(0)
    codec = train(Codec())
    codec.eval()
    with torch.no_grad():
        wav = synth_batch(64, 256, torch.Generator().manual_seed(9))
        rec, codes, _ = codec(wav)
    print(f"eval l1 {F.l1_loss(rec, wav).item():.4f}, codes used {codes.unique().numel()}")
    return codec


if __name__ == "__main__":
    main()
