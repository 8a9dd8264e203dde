"""Domain-adversarial training: the features shall tell classes apart, but not the domain they come from."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function


class Reverse(Function):
    """Identity whose gradient is negated and scaled, so that one backward trains two opponents."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.strength, None


class AdversarialNet(nn.Module):
    def __init__(self, dim=8, hidden=32, classes=3):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 16), nn.ReLU())
        self.label = nn.Linear(16, classes)
        self.domain = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, strength):
        z = self.features(x)
        return self.label(z), self.domain(Reverse.apply(z, strength)).squeeze(1)


class Adaptation:
    def __init__(self, steps=120, lr=0.05):
        self.net = AdversarialNet()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9)
        self.steps = steps

    def strength(self, step):
        return 2.0 / (1.0 + math.exp(-10 * step / self.steps)) - 1.0

    def run(self, source, target):
        (xs, ys), (xt, _) = source, target
        self.net.train()
        for step in range(self.steps):
            i, j = torch.randint(0, len(xs), (32,)), torch.randint(0, len(xt), (32,))
            labels, domains = self.net(torch.cat([xs[i], xt[j]]), self.strength(step))
            truth = torch.cat([torch.zeros(32), torch.ones(32)])
            label_loss = F.cross_entropy(labels[:32], ys[i])
            domain_loss = F.binary_cross_entropy_with_logits(domains, truth)
            self.optimizer.zero_grad()
            (label_loss + domain_loss).backward()
            self.optimizer.step()
            if step % 40 == 0:
                print(f"{step:3d} label {label_loss.item():.3f} domain {domain_loss.item():.3f}")

    @torch.no_grad()
    def accuracy(self, x, y):
        self.net.eval()
        logits, _ = self.net(x, 0.0)
        return (logits.argmax(1) == y).float().mean().item()


def blobs(n, shift, seed):
    g = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(3, 8, generator=torch.Generator().manual_seed(100))
    y = torch.randint(0, 3, (n,), generator=g)
    return centres[y] + torch.randn(n, 8, generator=g) + shift, y


def main():
    torch.manual_seed(10)
    source, target = blobs(256, 0.0, 1), blobs(256, 1.2, 2)
    job = Adaptation()
    job.run(source, target)
    print(f"source {job.accuracy(*source):.3f}, target {job.accuracy(*target):.3f}")
    return job


if __name__ == "__main__":
    main()
