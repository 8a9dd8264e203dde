"""VQ autoencoder whose codebook is a buffer kept by moving averages, with restarts of dead codes."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class EMAQuantizer(nn.Module):
    def __init__(self, codes, dim, decay=0.9, eps=1e-5):
        super().__init__()
        self.decay, self.eps = decay, eps
        embed = torch.randn(codes, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(codes))
        self.register_buffer("embed_avg", embed.clone())

    @torch.no_grad()
    def _update(self, flat, onehot):
        self.cluster_size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
        self.embed_avg.mul_(self.decay).add_(onehot.t() @ flat, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        size = (self.cluster_size + self.eps) / (n + len(self.embed) * self.eps) * n
        self.embed.data.copy_(self.embed_avg / size[:, None])
        dead = self.cluster_size < 0.05
        if dead.any():
            pick = flat[torch.randint(0, len(flat), (int(dead.sum()),))]
            self.embed[dead] = pick
            self.embed_avg[dead] = pick
            self.cluster_size[dead] = 1.0

    def forward(self, z):
        with torch.no_grad():
            index = torch.cdist(z, self.embed).argmin(1)
        onehot = F.one_hot(index, len(self.embed)).to(z.dtype)
        q = self.embed[index]
        if self.training:
            self._update(z.detach(), onehot)
        commit = F.mse_loss(z, q.detach())
        return z + (q - z).detach(), commit, index


class AutoEncoder(nn.Module):
    def __init__(self, d=10, dim=6, codes=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, dim))
        self.vq = EMAQuantizer(codes, dim)
        self.dec = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, d))

    def forward(self, x):
        q, commit, index = self.vq(self.enc(x))
        return self.dec(q), commit, index


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    modes = 2 * torch.randn(12, 10, generator=gen)

    def batch(n):
        return modes[torch.randint(0, 12, (n,), generator=gen)] + 0.1 * torch.randn(n, 10, generator=gen)

    model = AutoEncoder()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(200):
        model.train()
        x = batch(64)
        rec, commit, _ = model(x)
        loss = F.mse_loss(rec, x) + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 80 == 0:
            model.eval()
            with torch.no_grad():
                v = batch(256)
                rec, _, index = model(v)
            print(f"step {step}: loss {loss.item():.4f} val {F.mse_loss(rec, v).item():.4f} codes {index.unique().numel()}")
    model.eval()
    with torch.no_grad():
        return F.mse_loss(model(v)[0], v).item()


if __name__ == "__main__":
    main()
