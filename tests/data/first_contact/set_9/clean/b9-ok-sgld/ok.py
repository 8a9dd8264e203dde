import copy
import math

import torch
from torch import nn
from torch.optim import Optimizer


class pSGLD(Optimizer):
    def __init__(self, params, lr=1e-3, beta=0.99, lambda_=1e-5, num_pseudo_batches=100):
        defaults = dict(lr=lr, beta=beta, lambda_=lambda_, n=num_pseudo_batches)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, add_noise=True):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["v"] = torch.ones_like(p)
                v = state["v"]
                v.mul_(group["beta"]).addcmul_(p.grad, p.grad, value=1 - group["beta"])
                precond = v.sqrt().add_(group["lambda_"]).reciprocal_()
                drift = 0.5 * group["lr"] * precond * p.grad
                p.sub_(drift)
                if add_noise:
                    scale = (group["lr"] * precond / group["n"]).sqrt()
                    p.add_(scale * torch.randn_like(p))


class Regressor(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x):
        return self.net(x)

    def potential(self, x, y, total):
        noise = self.log_noise.exp()
        nll = 0.5 * ((self(x) - y) / noise).pow(2) + self.log_noise
        prior = sum(p.pow(2).sum() for p in self.net.parameters()) / (2 * total)
        return nll.mean() + prior


class SWAGMoments:
    def __init__(self, model):
        self.mean = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        self.sq = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        self.count = 0

    @torch.no_grad()
    def collect(self, model):
        self.count += 1
        for name, p in model.named_parameters():
            self.mean[name] += (p - self.mean[name]) / self.count
            self.sq[name] += (p.pow(2) - self.sq[name]) / self.count

    def std(self):
        return {n: (self.sq[n] - self.mean[n].pow(2)).clamp(min=0).sqrt() for n in self.mean}


def sample_posterior(model, x, y, burn_in, steps, thin, batch_size=16):
    optimizer = pSGLD(model.parameters(), lr=2e-2, num_pseudo_batches=len(x))
    moments, samples = SWAGMoments(model), []
    for step in range(burn_in + steps):
        index = torch.randint(len(x), (batch_size,))
        loss = model.potential(x[index], y[index], len(x))
        model.zero_grad()
        loss.backward()
        optimizer.step(add_noise=step >= burn_in // 2)
        if step >= burn_in:
            moments.collect(model)
            if step % thin == 0:
                samples.append(copy.deepcopy(model.state_dict()))
        if step % 150 == 149:
            print(f"step {step + 1} potential {loss.item():.4f} noise {model.log_noise.exp().item():.3f}")
    return samples, moments


@torch.no_grad()
def predict(model, samples, x):
    current = copy.deepcopy(model.state_dict())
    outputs = []
    for state in samples:
        model.load_state_dict(state)
        outputs.append(model(x))
    model.load_state_dict(current)
    stacked = torch.stack(outputs)
    return stacked.mean(0), stacked.std(0)


def main():
    torch.manual_seed(14)
    x = torch.cat([torch.rand(40, 1) * 2 - 3, torch.rand(40, 1) * 2 + 1])
    y = torch.sin(x * math.pi / 3) + 0.1 * torch.randn_like(x)
    model = Regressor()
    samples, moments = sample_posterior(model, x, y, burn_in=300, steps=300, thin=15)
    mean, std = predict(model, samples, torch.tensor([[-2.0], [0.0], [2.0], [5.0]]))
    print("mean", [round(v, 3) for v in mean.flatten().tolist()])
    print("std", [round(v, 3) for v in std.flatten().tolist()])
    print("weight std", round(moments.std()["net.0.weight"].mean().item(), 4), "samples", len(samples))


if __name__ == "__main__":
    main()
