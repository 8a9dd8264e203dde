"""Spiking network with a surrogate gradient, detached reset and truncated backpropagation through time."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


class FastSigmoidSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, slope):
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (v,) = ctx.saved_tensors
        return grad_output / (1 + ctx.slope * v.abs()) ** 2, None


@dataclass
class State:
    mem1: torch.Tensor
    mem2: torch.Tensor

    def detach(self):
        return State(self.mem1.detach(), self.mem2.detach())


class SpikingNet(nn.Module):
    def __init__(self, d_in=12, hidden=40, classes=4, beta=0.85, slope=5.0):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(d_in, hidden), nn.Linear(hidden, classes)
        self.beta = nn.Parameter(torch.full((hidden,), beta))
        self.slope = slope

    def initial(self, n):
        return State(torch.zeros(n, self.fc1.out_features), torch.zeros(n, self.fc2.out_features))

    def forward(self, x, s):
        mem = self.beta.clamp(0, 1) * s.mem1 + self.fc1(x)
        spk = FastSigmoidSpike.apply(mem - 1.0, self.slope)
        mem = mem - spk.detach()
        out = 0.9 * s.mem2 + self.fc2(spk)
        return out, State(mem, out)


def encode(x, steps, gen):
    p = torch.sigmoid(x)
    return [(torch.rand(x.shape, generator=gen) < p).float() for _ in range(steps)]


def data(n, seed):
    proto = 2 * torch.randn(4, 12, generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    return proto[y] + 0.4 * torch.randn(n, 12, generator=g), y


def run(net, x, y, opt, gen, steps=12, window=4):
    state, total = net.initial(len(x)), 0.0
    spikes = encode(x, steps, gen)
    for start in range(0, steps, window):
        state = state.detach()
        loss = 0.0
        for t in range(start, start + window):
            out, state = net(spikes[t], state)
            loss = loss + F.cross_entropy(out, y) / window
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
        total += loss.item()
    return total, (out.argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    net = SpikingNet()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    x, y = data(256, 1)
    xt, yt = data(128, 2)
    for epoch in range(5):
        net.train()
        for idx in torch.randperm(len(x)).split(64):
            loss, _ = run(net, x[idx], y[idx], opt, gen)
        net.eval()
        with torch.no_grad():
            _, acc = run(net, xt, yt, None, gen)
        if epoch % 2 == 0:
            print(f"epoch {epoch}: loss {loss:.3f} test acc {acc:.3f}")
    return acc


if __name__ == "__main__":
    main()
