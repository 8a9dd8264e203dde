import copy
import io
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Options:
    def __init__(self, resumetraining, epochs):
        self.resumetraining = resumetraining
        self.epochs = epochs
        self.iters = 30
        self.batch_size = 64
        self.nz = 6
        self.nch = 48
        self.lr = 2e-3
        self.betas = (0.0, 0.99)
        self.lambd = 1.0
        self.beta_gs = 0.95


class CheckpointFolder:
    """Whole pickled models per epoch, in memory."""

    def __init__(self):
        self.files = {}

    def save(self, name, model):
        buffer = io.BytesIO()
        torch.save(model, buffer)
        self.files[name] = buffer.getvalue()

    def load(self, name):
        return torch.load(io.BytesIO(self.files[name]), weights_only=False)

    def last_epoch(self):
        return max(int(name.split("-")[-1]) for name in self.files)


def generator(opt):
    return nn.Sequential(nn.Linear(opt.nz, opt.nch), nn.LeakyReLU(0.2), nn.Linear(opt.nch, opt.nch), nn.LeakyReLU(0.2), nn.Linear(opt.nch, 2))


def discriminator(opt):
    return nn.Sequential(nn.Linear(2, opt.nch), nn.LeakyReLU(0.2), nn.Linear(opt.nch, opt.nch), nn.LeakyReLU(0.2), nn.Linear(opt.nch, 1))


def exp_mov_avg(Gs, G, alpha):
    with torch.no_grad():
        for ema_param, param in zip(Gs.parameters(), G.parameters()):
            ema_param.mul_(alpha).add_(param, alpha=1 - alpha)


def real_samples(n):
    t = torch.rand(n) * math.pi
    return torch.stack([t.cos(), t.sin()], dim=1) + 0.05 * torch.randn(n, 2)


def r1_penalty(D, x, lambd):
    x = x.detach().requires_grad_(True)
    grad, = torch.autograd.grad(D(x).sum(), x, create_graph=True)
    return 0.5 * lambd * grad.pow(2).sum(1).mean()


def train(opt, folder):
    G, D = generator(opt), discriminator(opt)
    Gs = copy.deepcopy(G)
    optimizer_G = torch.optim.Adam(G.parameters(), lr=opt.lr, betas=opt.betas)
    optimizer_D = torch.optim.Adam(D.parameters(), lr=opt.lr, betas=opt.betas)
    first = 0

    if opt.resumetraining:
        last = folder.last_epoch()
        G = folder.load(f"G-{last}")
        D = folder.load(f"D-{last}")
        Gs = folder.load(f"Gs-{last}")
        first = last + 1

    start = copy.deepcopy(G.state_dict())
    for epoch in range(first, first + opt.epochs):
        for _ in range(opt.iters):
            real = real_samples(opt.batch_size)
            D.zero_grad()
            with torch.no_grad():
                fake = G(torch.randn(opt.batch_size, opt.nz))
            d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean() + r1_penalty(D, real, opt.lambd)
            d_loss.backward()
            optimizer_D.step()

            G.zero_grad()
            g_loss = F.softplus(-D(G(torch.randn(opt.batch_size, opt.nz)))).mean()
            g_loss.backward()
            optimizer_G.step()
            exp_mov_avg(Gs, G, opt.beta_gs)
        for name, model in (("G", G), ("D", D), ("Gs", Gs)):
            folder.save(f"{name}-{epoch}", model)
        print(f"epoch {epoch}  d_loss {d_loss.item():.4f}  g_loss {g_loss.item():.4f}")
    changed = sum(not torch.equal(start[k], v) for k, v in G.state_dict().items())
    return changed, len(start)


def main():
    torch.manual_seed(9)
    folder = CheckpointFolder()
    train(Options(resumetraining=False, epochs=2), folder)
    changed, total = train(Options(resumetraining=True, epochs=3), folder)
    return {"changed_generator_tensors_after_resume": changed, "of": total}


if __name__ == "__main__":
    main()
