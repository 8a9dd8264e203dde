"""Spiking network with leaky integrate-and-fire neurons on rate-coded patterns."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class SigmoidSpike(torch.autograd.Function):
    """Heaviside step forward, derivative of a steep sigmoid backward."""

    @staticmethod
    def forward(ctx, input_, slope):
        ctx.save_for_backward(input_)
        ctx.slope = slope
        return (input_ > 0).float()

    @staticmethod
    def backward(ctx, grad_output):
        (input_,) = ctx.saved_tensors
        e = torch.exp(-ctx.slope * input_)
        grad = grad_output * ctx.slope * e / ((e + 1) ** 2)
        return grad, None


def sigmoid(slope=25):
    def inner(x):
        return SigmoidSpike.apply(x, slope)
    return inner


class Leaky(nn.Module):
    def __init__(self, beta, spike_grad, threshold=1.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold
        self.spike_grad = spike_grad

    def init_leaky(self, like):
        return torch.zeros_like(like)

    def forward(self, current, mem):
        mem = self.beta * mem + current
        spk = self.spike_grad(mem - self.threshold)
        mem = mem - spk.detach() * self.threshold
        return spk, mem


class SpikingNet(nn.Module):
    def __init__(self, n_in=40, n_hidden=64, n_out=4, num_steps=12, beta=0.9):
        super().__init__()
        self.num_steps = num_steps
        self.fc1 = nn.Linear(n_in, n_hidden)
        self.lif1 = Leaky(beta, sigmoid())
        self.fc2 = nn.Linear(n_hidden, n_out)
        self.lif2 = Leaky(beta, sigmoid())

    def forward(self, x):
        mem1 = mem2 = None
        spikes = []
        for _ in range(self.num_steps):
            cur1 = self.fc1(x)
            if mem1 is None:
                mem1 = self.lif1.init_leaky(cur1)
            spk1, mem1 = self.lif1(cur1, mem1)
            cur2 = self.fc2(spk1)
            if mem2 is None:
                mem2 = self.lif2.init_leaky(cur2)
            spk2, mem2 = self.lif2(cur2, mem2)
            spikes.append(spk2)
        return torch.stack(spikes)


def make_data(n=512, dim=40, classes=4):
    g = torch.Generator().manual_seed(3)
    centers = torch.randn(classes, dim, generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    return 1.5 * centers[y] + torch.randn(n, dim, generator=g), y


def train(net, x, y, epochs=8, batch_size=64, max_norm=5.0):
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        running = 0.0
        for i in range(0, len(x), batch_size):
            idx = order[i:i + batch_size]
            rates = net(x[idx]).mean(dim=0)
            loss = F.cross_entropy(4.0 * rates, y[idx])
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
            if torch.isfinite(norm):
                optimizer.step()
            running += loss.item()
        print(f"epoch {epoch}  loss {running / (len(x) / batch_size):.4f}")
    return net


def main():
    torch.manual_seed(0)
    x, y = make_data()
    net = train(SpikingNet(), x, y)
    with torch.no_grad():
        acc = (net(x).sum(0).argmax(1) == y).float().mean().item()
    print(f"accuracy {acc:.3f}")
    return net


if __name__ == "__main__":
    main()
