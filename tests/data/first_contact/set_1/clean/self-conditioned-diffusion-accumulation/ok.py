import copy
import random
from contextlib import contextmanager

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfCondUnet(nn.Module):
    def __init__(self, dim=6, hidden=48):
        super().__init__()
        self.inp, self.time = nn.Linear(2 * dim, hidden), nn.Linear(1, hidden)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden), nn.Dropout(0.05), nn.SiLU(), nn.Linear(hidden, dim))

    def forward(self, x, t, x_self_cond=None):
        if x_self_cond is None:
            x_self_cond = torch.zeros_like(x)
        return self.body(self.inp(torch.cat([x, x_self_cond], dim=1)) + self.time(t[:, None]))


class GaussianDiffusion(nn.Module):
    def __init__(self, model, steps=20):
        super().__init__()
        self.model, self.steps = model, steps
        self.register_buffer("alphas", torch.linspace(0.98, 0.05, steps))

    def forward(self, x0):
        t = torch.randint(0, self.steps, (len(x0),))
        a = self.alphas[t][:, None]
        noise = torch.randn_like(x0)
        x = a.sqrt() * x0 + (1 - a).sqrt() * noise
        x_self_cond = None
        if random.random() < 0.5:
            with torch.no_grad():
                x_self_cond = self.model(x, t / self.steps).detach_()
        return F.mse_loss(self.model(x, t / self.steps, x_self_cond), x0)

    @torch.no_grad()
    def sample(self, n, dim=6):
        x, x0 = torch.randn(n, dim), None
        for t in reversed(range(self.steps)):
            x0 = self.model(x, torch.full((n,), t / self.steps), x0)
            a = self.alphas[max(t - 1, 0)]
            x = a.sqrt() * x0 + (1 - a).sqrt() * torch.randn_like(x0) * float(t > 0)
        return x


class Trainer:
    def __init__(self, diffusion, data, accumulate=4, steps=100, ema_decay=0.98):
        self.diffusion, self.data, self.accumulate, self.steps, self.decay = diffusion, data, accumulate, steps, ema_decay
        self.opt = torch.optim.Adam(diffusion.parameters(), lr=3e-3)
        self.shadow = {k: v.detach().clone() for k, v in diffusion.named_parameters()}

    @contextmanager
    def ema_scope(self):
        backup = {k: v.detach().clone() for k, v in self.diffusion.named_parameters()}
        with torch.no_grad():
            for k, p in self.diffusion.named_parameters():
                p.copy_(self.shadow[k])
        self.diffusion.eval()
        try:
            yield
        finally:
            self.diffusion.train()
            with torch.no_grad():
                for k, p in self.diffusion.named_parameters():
                    p.copy_(backup[k])

    def train(self):
        for step in range(self.steps):
            total = 0.0
            for _ in range(self.accumulate):
                loss = self.diffusion(self.data(32)) / self.accumulate
                total += loss.item()
                loss.backward()
            nn.utils.clip_grad_norm_(self.diffusion.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
            with torch.no_grad():
                for k, p in self.diffusion.named_parameters():
                    self.shadow[k].lerp_(p, 1 - self.decay)
            if (step + 1) % 25 == 0:
                with self.ema_scope():
                    samples = self.diffusion.sample(64)
                print(f"step {step + 1}  loss {total:.4f}  sample std {samples.std().item():.3f}")
        return total


def main():
    random.seed(0), torch.manual_seed(0)
    mix = torch.randn(2, 6)
    trainer = Trainer(GaussianDiffusion(SelfCondUnet()), lambda n: torch.tanh(torch.randn(n, 2) @ mix))
    return {"loss": trainer.train()}


if __name__ == "__main__":
    main()
