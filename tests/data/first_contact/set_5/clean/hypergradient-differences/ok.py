"""Learned augmentation weights by one-step lookahead; the mixed second derivative by finite differences."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, d=6, h=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, 2))

    def forward(self, x):
        return self.body(x)


class SourceWeights(nn.Module):
    def __init__(self, sources):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(sources))

    def forward(self, per_source):
        return (self.alpha.softmax(0) * per_source).sum()


class Architect:
    def __init__(self, net, mixer, xi, lr=0.1):
        self.net, self.mixer, self.xi = net, mixer, xi
        self.opt = torch.optim.Adam(mixer.parameters(), lr=lr, betas=(0.5, 0.999))

    def train_loss(self, sources):
        return self.mixer(torch.stack([F.cross_entropy(self.net(x), y) for x, y in sources]))

    def _shift(self, direction, size):
        with torch.no_grad():
            for p, v in zip(self.net.parameters(), direction):
                p.add_(v, alpha=size)

    def _alpha_grad(self, sources):
        return torch.autograd.grad(self.train_loss(sources), self.mixer.alpha)[0]

    def step(self, sources, held_out):
        weights = list(self.net.parameters())
        backup = [p.detach().clone() for p in weights]

        inner = torch.autograd.grad(self.train_loss(sources), weights)
        self._shift(inner, -self.xi)
        outer = torch.autograd.grad(F.cross_entropy(self.net(held_out[0]), held_out[1]), weights)
        self._restore(backup)

        eps = 0.01 / torch.cat([v.flatten() for v in outer]).norm().item()
        self._shift(outer, eps)
        plus = self._alpha_grad(sources)
        self._restore(backup)
        self._shift(outer, -eps)
        minus = self._alpha_grad(sources)
        self._restore(backup)

        # there is no backward(): the mixer's gradient is put together here
        self.mixer.alpha.grad = -self.xi * (plus - minus) / (2 * eps)
        self.opt.step()

    def _restore(self, backup):
        for p, saved in zip(self.net.parameters(), backup):
            p.data.copy_(saved)


def draw(direction, flip, n=48):
    x = torch.randn(n, len(direction))
    y = (x @ direction > 0).long()
    return x, torch.where(torch.rand(n) < flip, 1 - y, y)


def main():
    torch.manual_seed(10)
    direction, noise = torch.randn(6), [0.0, 0.5, 0.9]
    net, mixer = Net(), SourceWeights(len(noise))
    architect = Architect(net, mixer, xi=0.3)
    opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
    for _ in range(80):
        sources = [draw(direction, f) for f in noise]
        architect.step(sources, draw(direction, 0.0))
        loss = architect.train_loss(sources)
        opt.zero_grad()
        loss.backward()
        opt.step()
    weights = mixer.alpha.detach().softmax(0)
    print("weights of the sources:", [round(w, 3) for w in weights.tolist()], f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
