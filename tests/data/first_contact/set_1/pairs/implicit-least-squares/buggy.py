"""Blind deconvolution: a kernel network feeds a least-squares layer with an implicit backward."""
import torch
import torch.nn as nn
import torch.nn.functional as F

N, TAPS = 24, 5


class Blur:
    """Circular convolution with a batch of short filters."""

    def __init__(self, n=N):
        idx = (torch.arange(n)[:, None] - torch.arange(n)[None, :]) % n
        self.idx, self.n = idx, n
        self.filter = None

    def update_parameters(self, filter):
        self.filter = filter
        return self

    def matrix(self, filter=None):
        filter = self.filter if filter is None else filter
        full = F.pad(filter, (0, self.n - filter.size(-1)))
        return full[:, self.idx]

    def __call__(self, x, filter=None):
        return torch.bmm(self.matrix(filter), x[..., None]).squeeze(-1)


class LeastSquares(torch.autograd.Function):
    """argmin_x |A x - y|^2 + gamma |x|^2 with gradients by implicit differentiation."""

    @staticmethod
    def forward(ctx, y, physics, gamma):
        A = physics.matrix().detach()
        H = A.transpose(1, 2) @ A + gamma * torch.eye(A.size(-1), dtype=A.dtype)
        x = torch.linalg.solve(H, (A.transpose(1, 2) @ y[..., None])).squeeze(-1)
        ctx.save_for_backward(x, y, A, H)
        ctx.physics = physics
        return x

    @staticmethod
    def backward(ctx, grad):
        x, y, A, H = ctx.saved_tensors
        v = torch.linalg.solve(H, grad[..., None]).squeeze(-1)
        grad_y = (A @ v[..., None]).squeeze(-1)
        theta = ctx.physics.filter
        if theta.requires_grad and theta.is_leaf:
            with torch.enable_grad():
                w = theta.detach().requires_grad_()
                r = y - ctx.physics(x, w)
                inner = (ctx.physics(v, w) * r).sum()
                (g,) = torch.autograd.grad(inner, w)
            theta.grad = g if theta.grad is None else theta.grad + g
        return grad_y, None, None


def least_squares(y, physics, gamma=0.05):
    return LeastSquares.apply(y, physics, gamma)


class KernelNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(N, 48), nn.ReLU(), nn.Linear(48, TAPS))

    def forward(self, y):
        spec = torch.fft.rfft(y).abs()
        feats = torch.cat([spec, y[:, :N - spec.size(1)]], dim=1)
        return torch.softmax(self.net(feats), dim=-1)


class BlindDeconv(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel_net = KernelNet()
        self.physics = Blur()
        self.refine = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 1, 3, padding=1))

    def forward(self, y):
        filt = self.kernel_net(y)
        x0 = least_squares(y, self.physics.update_parameters(filt))
        return x0 + self.refine(x0[:, None]).squeeze(1), filt


def make_batch(n, gen):
    x = torch.zeros(n, N)
    for _ in range(3):
        pos = torch.randint(0, N, (n, 1), generator=gen)
        x.scatter_add_(1, pos, 1 + torch.rand(n, 1, generator=gen))
    width = 0.3 + 1.7 * torch.rand(n, 1, generator=gen)
    true = torch.softmax(-torch.arange(TAPS)[None] / width, dim=-1)
    y = Blur()(x, true) + 0.01 * torch.randn(n, N, generator=gen)
    return x, y, true


def train(steps=300, prior=0.02):
    gen = torch.Generator().manual_seed(1)
    model = BlindDeconv()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        x, y, _ = make_batch(32, gen)
        rec, filt = model(y)
        loss = F.mse_loss(rec, x) + prior * (filt[:, 1:] - filt[:, :-1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    x, y, true = make_batch(128, gen)
    with torch.no_grad():
        rec, filt = model(y)
    return F.mse_loss(rec, x).item(), (filt - true).abs().mean().item()


def target(y, filt):
    return least_squares(y, Blur().update_parameters(filt * 1.0))


def make_inputs():
    g = torch.Generator().manual_seed(0)
    y = torch.randn(2, N, generator=g, dtype=torch.float64).requires_grad_()
    return y, torch.softmax(torch.randn(2, TAPS, generator=g, dtype=torch.float64), -1).requires_grad_()


def main():
    torch.manual_seed(0)
    mse, kernel_err = train()
    print(f"test mse {mse:.4f} kernel error {kernel_err:.4f}")
    return {"test_mse": mse, "kernel_error": kernel_err}


if __name__ == "__main__":
    main()
