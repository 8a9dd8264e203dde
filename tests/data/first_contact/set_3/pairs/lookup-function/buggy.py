"""VQ-VAE with the codebook lookup as an autograd Function."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function


class CodebookLookup(Function):
    @staticmethod
    def forward(ctx, codebook, indices):
        flat = indices.reshape(-1)
        ctx.save_for_backward(flat)
        ctx.codebook_shape = codebook.shape
        return codebook.index_select(0, flat).view(*indices.shape, codebook.shape[1])

    @staticmethod
    def backward(ctx, grad_output):
        (flat,) = ctx.saved_tensors
        grad_codebook = None
        if ctx.needs_input_grad[0]:
            grad_codebook = grad_output.new_zeros(ctx.codebook_shape)
            grad_codebook[flat] = grad_output.reshape(-1, ctx.codebook_shape[1])
        return grad_codebook, None


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, inputs, codes):
        return codes.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


def target(codebook):
    indices = torch.tensor([[0, 2, 2], [1, 2, 0]])
    return CodebookLookup.apply(codebook, indices)


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_(),)


@dataclass
class Config:
    data_dim: int = 10
    positions: int = 4
    code_dim: int = 6
    num_codes: int = 12
    hidden: int = 32
    beta: float = 0.25
    batch_size: int = 64
    lr: float = 2e-3
    codebook_lr: float = 0.5
    epochs: int = 6
    steps: int = 25
    seed: int = 2


class VQVAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.encoder = nn.Sequential(
            nn.Linear(cfg.data_dim, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.positions * cfg.code_dim)
        )
        self.decoder = nn.Sequential(
            nn.Linear(cfg.positions * cfg.code_dim, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.data_dim)
        )
        self.codebook = nn.Parameter(torch.randn(cfg.num_codes, cfg.code_dim) * 0.3)

    def forward(self, x):
        z_e = self.encoder(x).view(-1, self.cfg.positions, self.cfg.code_dim)
        with torch.no_grad():
            indices = torch.cdist(z_e, self.codebook[None]).argmin(dim=-1)
        codes = CodebookLookup.apply(self.codebook, indices)
        z_q = StraightThrough.apply(z_e, codes.detach())
        return self.decoder(z_q.flatten(1)), z_e, codes, indices


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = VQVAE(cfg)
        net = [p for n, p in self.model.named_parameters() if n != "codebook"]
        self.optimizer = torch.optim.Adam(net, lr=cfg.lr)
        self.codebook_optimizer = torch.optim.SGD([self.model.codebook], lr=cfg.codebook_lr, momentum=0.9)
        self.centers = torch.randn(6, cfg.data_dim)
        self.vq_history, self.recon_history = [], []

    def batch(self):
        which = torch.randint(0, 6, (self.cfg.batch_size,))
        return self.centers[which] + 0.3 * torch.randn(self.cfg.batch_size, self.cfg.data_dim)

    def step(self):
        x = self.batch()
        recon, z_e, codes, indices = self.model(x)
        recon_loss = F.mse_loss(recon, x)
        vq_loss = F.mse_loss(codes, z_e.detach())
        loss = recon_loss + vq_loss + self.cfg.beta * F.mse_loss(z_e, codes.detach())
        self.optimizer.zero_grad()
        self.codebook_optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.codebook_optimizer.step()
        return recon_loss.item(), vq_loss.item(), indices.unique().numel()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            rows = [self.step() for _ in range(self.cfg.steps)]
            recon, vq, used = (sum(column) / len(rows) for column in zip(*rows))
            self.recon_history.append(recon)
            self.vq_history.append(vq)
            print(f"epoch {epoch} recon {recon:.4f} vq {vq:.4f} codes used {used:.1f}")
        return self


def main():
    return Trainer(Config()).fit()


if __name__ == "__main__":
    main()
