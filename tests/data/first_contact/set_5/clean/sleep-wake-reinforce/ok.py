"""Binary latents: wake phase with a score-function estimator and a learned baseline, then a sleep phase."""
import torch
import torch.nn as nn
from torch.distributions import Bernoulli


def net(a, b, hidden=32):
    return nn.Sequential(nn.Linear(a, hidden), nn.Tanh(), nn.Linear(hidden, b))


class Helmholtz(nn.Module):
    def __init__(self, data=12, latents=5):
        super().__init__()
        self.recognition = net(data, latents)
        self.generation = net(latents, data)
        self.prior = nn.Parameter(torch.zeros(latents))
        self.baseline = net(data, 1)

    def q(self, x):
        return Bernoulli(logits=self.recognition(x))

    def log_joint(self, x, z):
        likelihood = Bernoulli(logits=self.generation(z)).log_prob(x).sum(1)
        return likelihood + Bernoulli(logits=self.prior).log_prob(z).sum(1)

    @torch.no_grad()
    def dream(self, n):
        z = Bernoulli(logits=self.prior).sample((n,))
        return Bernoulli(logits=self.generation(z)).sample(), z


class Optimizers:
    def __init__(self, model, lr):
        self.generative = torch.optim.Adam([*model.generation.parameters(), model.prior], lr=lr)
        self.recognition = torch.optim.Adam(model.recognition.parameters(), lr=lr)
        self.baseline = torch.optim.Adam(model.baseline.parameters(), lr=5 * lr)

    def __iter__(self):
        return iter((self.generative, self.recognition, self.baseline))

    def zero_grad(self):
        for o in self:
            o.zero_grad(set_to_none=True)


def wake(model, optimizers, x):
    q = model.q(x)
    z = q.sample()
    log_q = q.log_prob(z).sum(1)
    log_p = model.log_joint(x, z)
    elbo = (log_p - log_q).detach()
    guess = model.baseline(x).squeeze(1)
    advantage = elbo - guess.detach()
    optimizers.zero_grad()
    # z has no gradient: log_p teaches the generator, the score function teaches the recogniser
    (-log_p.mean()).backward()
    (-(advantage * log_q).mean()).backward()
    (guess - elbo).pow(2).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    return elbo.mean().item()


def sleep(model, optimizers, n):
    x, z = model.dream(n)
    loss = -model.q(x).log_prob(z).sum(1).mean()
    optimizers.recognition.zero_grad(set_to_none=True)
    loss.backward()
    optimizers.recognition.step()
    return loss.item()


def bars(patterns, n=64):
    clean = patterns[torch.randint(len(patterns), (n,))]
    return torch.where(torch.rand_like(clean) < 0.05, 1 - clean, clean)


def main():
    torch.manual_seed(16)
    patterns = (torch.rand(6, 12) > 0.5).float()
    model = Helmholtz()
    optimizers = Optimizers(model, lr=3e-3)
    history = []
    for step in range(200):
        history.append(wake(model, optimizers, bars(patterns)))
        if step % 4 == 3:
            sleep(model, optimizers, 64)
    print(f"bound {sum(history[:10]) / 10:.3f} -> {sum(history[-10:]) / 10:.3f}")


if __name__ == "__main__":
    main()
