import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function


def nearest(inputs, codebook):
    with torch.no_grad():
        return torch.cdist(inputs, codebook).argmin(dim=1)


class VectorQuantizationStraightThrough(Function):
    @staticmethod
    def forward(ctx, inputs, codebook):
        indices = nearest(inputs, codebook)
        return codebook.index_select(0, indices)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


vq_st = VectorQuantizationStraightThrough.apply


class VQEmbedding(nn.Module):
    def __init__(self, codes, dim):
        super().__init__()
        self.embedding = nn.Embedding(codes, dim)
        self.embedding.weight.data.uniform_(-0.5, 0.5)

    def straight_through(self, z_e):
        z_q_st = vq_st(z_e, self.embedding.weight)
        z_q = self.embedding(nearest(z_e, self.embedding.weight))
        return z_q_st, z_q


class VectorQuantizedVAE(nn.Module):
    def __init__(self, data=8, hidden=32, dim=4, codes=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(data, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.codebook = VQEmbedding(codes, dim)
        self.decoder = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, data))

    def forward(self, x):
        z_e = self.encoder(x)
        z_q_st, z_q = self.codebook.straight_through(z_e)
        return self.decoder(z_q_st), z_e, z_q


def losses(model, x, beta=0.25):
    x_tilde, z_e, z_q = model(x)
    recons = F.mse_loss(x_tilde, x)
    vq = F.mse_loss(z_q, z_e.detach())
    commit = F.mse_loss(z_e, z_q.detach())
    return recons, vq, beta * commit


def make_batch(centres, n):
    which = torch.randint(len(centres), (n,))
    return centres[which] + 0.1 * torch.randn(n, centres.size(1))


def main():
    torch.manual_seed(19)
    centres = torch.randn(10, 8)
    model = VectorQuantizedVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(300):
        recons, vq, commit = losses(model, make_batch(centres, 64))
        optimizer.zero_grad()
        (recons + vq + commit).backward()
        optimizer.step()
    print(f"reconstruction {recons.item():.4f}, codebook {vq.item():.4f}")
    return {"model": model, "batch": make_batch(centres, 64)}

if __name__ == "__main__":
    main()
