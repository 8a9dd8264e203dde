"""RMS normalisation with a hand-written backward whose row results do not depend on the batch size."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _rows_mean_of_squares(x):
    return torch.stack([row.pow(2).mean() for row in x.unbind(0)])


class InvariantRMSNormFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps, zero_centered):
        flat = x.reshape(-1, x.shape[-1])
        rsigma = torch.rsqrt(_rows_mean_of_squares(flat) + eps).unsqueeze(-1)
        scale = weight + 1.0 if zero_centered else weight
        ctx.save_for_backward(flat, weight, rsigma)
        ctx.zero_centered = zero_centered
        ctx.shape = x.shape
        return (flat * rsigma * scale).view(x.shape)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, rsigma = ctx.saved_tensors
        g = grad_output.reshape(x.shape)
        scale = weight + 1.0 if ctx.zero_centered else weight
        size = x.shape[-1]
        g_w = (g * x * rsigma).sum(0)
        s = (g * x * scale).sum(-1, keepdim=True)
        g_x = g * scale * rsigma - scale * rsigma.pow(3) * x * s / size
        return g_x.view(ctx.shape), g_w, None, None


class InvariantRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5, zero_centered=True):
        super().__init__()
        self.eps, self.zero_centered = eps, zero_centered
        self.weight = nn.Parameter(torch.zeros(dim) if zero_centered else torch.ones(dim))

    def forward(self, x):
        return InvariantRMSNormFn.apply(x, self.weight, self.eps, self.zero_centered)


def target(x, weight):
    return InvariantRMSNormFn.apply(x, weight, 1e-5, False)


def make_inputs():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(3, 6, generator=g, dtype=torch.double, requires_grad=True)
    weight = torch.rand(6, generator=g, dtype=torch.double) + 0.3
    return x, weight.requires_grad_()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 24)
        self.norm = InvariantRMSNorm(24)
        self.down = nn.Linear(24, 1)

    def forward(self, x):
        return self.down(F.silu(self.norm(self.up(x)))).squeeze(-1)


def main():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    x = torch.randn(32, 6)
    y = torch.sin(x).sum(-1)
    for _ in range(10):
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", round(loss.item(), 4))
    return net


if __name__ == "__main__":
    main()
