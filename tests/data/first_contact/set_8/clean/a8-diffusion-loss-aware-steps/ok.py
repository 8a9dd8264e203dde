import copy
import math
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn


class LossSecondMomentSampler:
    def __init__(self, timesteps, history=4, uniform=0.05):
        self.history = [deque(maxlen=history) for _ in range(timesteps)]
        self.uniform = uniform

    def weights(self):
        if any(len(h) < h.maxlen for h in self.history):
            return torch.full((len(self.history),), 1.0 / len(self.history))
        moment = torch.tensor([math.sqrt(sum(v * v for v in h) / len(h)) for h in self.history])
        probability = moment / moment.sum()
        return (1 - self.uniform) * probability + self.uniform / len(self.history)

    def sample(self, n):
        p = self.weights()
        t = torch.multinomial(p, n, replacement=True)
        return t, 1.0 / (len(p) * p[t])

    def update(self, t, losses):
        for step, value in zip(t.tolist(), losses.tolist()):
            self.history[step].append(value)


class Denoiser(nn.Module):
    def __init__(self, dim, n_classes, timesteps, hidden=64, drop=0.1):
        super().__init__()
        self.label = nn.Embedding(n_classes + 1, hidden)
        self.time = nn.Embedding(timesteps, hidden)
        self.inp = nn.Linear(dim, hidden)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.out = nn.Linear(hidden, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.null, self.drop = n_classes, drop

    def forward(self, x, t, y):
        if self.training:
            dropped = torch.rand(len(y)) < self.drop
            y = torch.where(dropped, self.null, y)
        return self.out(self.mid(self.inp(x) + self.time(t) + self.label(y)))


class EMA:
    def __init__(self, model, decay):
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for a, p in zip(self.average.parameters(), model.parameters()):
            a.data.mul_(self.decay).add_(p.data, alpha=1 - self.decay)


class Diffusion:
    def __init__(self, timesteps):
        self.betas = torch.linspace(1e-3, 0.25, timesteps)
        self.keep = torch.cumprod(1 - self.betas, dim=0)

    def q_sample(self, x, t, eps):
        keep = self.keep[t].unsqueeze(1)
        return keep.sqrt() * x + (1 - keep).sqrt() * eps

    @torch.no_grad()
    def sample(self, model, y, dim, guidance):
        x = torch.randn(len(y), dim)
        null = torch.full_like(y, model.null)
        for step in reversed(range(len(self.betas))):
            t = torch.full_like(y, step)
            free = model(x, t, null)
            eps = free + guidance * (model(x, t, y) - free)
            x = (x - self.betas[step] / (1 - self.keep[step]).sqrt() * eps)
            x = x / (1 - self.betas[step]).sqrt()
            if step:
                x = x + self.betas[step].sqrt() * torch.randn_like(x)
        return x


def main():
    torch.manual_seed(0)
    timesteps, n_classes, dim = 20, 4, 6
    centres = 1.5 * torch.randn(n_classes, dim)
    y_all = torch.randint(0, n_classes, (1024,))
    x_all = centres[y_all] + 0.2 * torch.randn(1024, dim)
    model, diffusion = Denoiser(dim, n_classes, timesteps), Diffusion(timesteps)
    ema, sampler = EMA(model, 0.98), LossSecondMomentSampler(timesteps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    curve = []
    for step in range(400):
        pick = torch.randint(0, len(x_all), (64,))
        t, weight = sampler.sample(64)
        eps = torch.randn(64, dim)
        predicted = model(diffusion.q_sample(x_all[pick], t, eps), t, y_all[pick])
        losses = F.mse_loss(predicted, eps, reduction="none").mean(1)
        sampler.update(t, losses.detach())
        loss = (losses * weight).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        ema.update(model)
        curve.append(loss.item())
    y = torch.arange(n_classes).repeat(16)
    for name, net in (("raw", model), ("ema", ema.average)):
        was_training = net.training
        net.eval()
        samples = diffusion.sample(net, y, dim, guidance=1.0)
        net.train(was_training)
        print(f"{name} distance {(samples - centres[y]).norm(dim=1).mean().item():.4f}")
    print(f"loss of the last 50 steps {sum(curve[-50:]) / 50:.4f}")


if __name__ == "__main__":
    main()
