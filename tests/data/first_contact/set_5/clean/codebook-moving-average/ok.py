import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ScaleGradient(Function):
    """Identity whose gradient is scaled by what the module was given; a negative one reverses it."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * ctx.scale, None


class Codebook(nn.Module):
    """Straight-through quantiser whose codes are moving averages of what is assigned to them."""

    def __init__(self, codes=24, dim=4, decay=0.95, eps=1e-4):
        super().__init__()
        self.decay, self.eps = decay, eps
        init = torch.randn(codes, dim)
        self.register_buffer("weight", init)
        self.register_buffer("mean", init.clone())
        self.register_buffer("size", torch.ones(codes))

    def forward(self, z):
        with torch.no_grad():
            codes = torch.cdist(z, self.weight).argmin(1)
            quantised = self.weight[codes]
            if self.training:
                self.follow(z, codes)
        commitment = (z - quantised).pow(2).mean()
        return z + (quantised - z).detach(), commitment, codes

    def follow(self, z, codes):
        one_hot = F.one_hot(codes, len(self.weight)).to(z.dtype)
        self.size.mul_(self.decay).add_(one_hot.sum(0), alpha=1 - self.decay)
        self.mean.mul_(self.decay).add_(one_hot.t() @ z, alpha=1 - self.decay)
        self.weight.copy_(self.mean / (self.size + self.eps).unsqueeze(1))


class Autoencoder(nn.Module):
    """The code is to say nothing about the speaker: the probe's gradient comes back reversed."""

    def __init__(self, data=10, dim=4, speakers=2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(data, 32), nn.ReLU(), nn.Linear(32, dim))
        self.codebook = Codebook(dim=dim)
        self.decoder = nn.Sequential(nn.Linear(dim + speakers, 32), nn.ReLU(), nn.Linear(32, data))
        self.probe = nn.Linear(dim, speakers)
        self.speakers = speakers

    def forward(self, x, speaker, reverse=-0.1):
        z, commitment, _ = self.codebook(self.encoder(x))
        y = self.decoder(torch.cat([z, F.one_hot(speaker, self.speakers).float()], 1))
        return y, commitment, self.probe(ScaleGradient.apply(z, reverse))


def batch(basis, n=64):
    which, speaker = torch.randint(len(basis), (n,)), torch.randint(2, (n,))
    return basis[which] + speaker.unsqueeze(1) * 0.7 + 0.05 * torch.randn(n, basis.size(1)), speaker


def main():
    torch.manual_seed(14)
    basis, model = torch.randn(6, 10), Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(200):
        x, speaker = batch(basis)
        y, commitment, guess = model(x, speaker)
        reconstruction = F.mse_loss(y, x)
        loss = reconstruction + 0.25 * commitment + F.cross_entropy(guess, speaker)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        x, speaker = batch(basis, 256)
        y, _, guess = model(x, speaker)
    print(f"reconstruction {F.mse_loss(y, x):.4f}, probe accuracy {(guess.argmax(1) == speaker).float().mean():.3f}")


if __name__ == "__main__":
    main()
