"""Deep equilibrium classifier: fixed point without graph, implicit backward by a hook."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Cell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner, self.inject = nn.Linear(dim, dim), nn.Linear(dim, dim)
        nn.init.orthogonal_(self.inner.weight, gain=0.5)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)

    def forward(self, z, x):
        return torch.tanh(self.inner(z) + self.norm(self.inject(x)))


def solve(f, z, max_iter=40, tol=1e-5):
    for _ in range(max_iter):
        new = f(z)
        if (new - z).norm() < tol * (1 + z.norm()):
            return new
        z = new
    return z


class DEQ(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.f = cell

    def forward(self, x):
        with torch.no_grad():
            z = solve(lambda z: self.f(z, x), torch.zeros_like(x))
        z = self.f(z, x)
        if not torch.is_grad_enabled():
            return z
        z0 = z.clone().detach().requires_grad_()
        f0 = self.f(z0, x)

        def backward_hook(grad):
            return solve(lambda y: torch.autograd.grad(f0, z0, y, retain_graph=True)[0] + grad, grad)

        z.register_hook(backward_hook)
        return z


class Model(nn.Module):
    def __init__(self, d_in=8, dim=16, classes=4):
        super().__init__()
        self.enc, self.deq, self.head = nn.Linear(d_in, dim), DEQ(Cell(dim)), nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.deq(self.enc(x)))


def data(n, seed):
    proto = torch.randn(4, 8, generator=torch.Generator().manual_seed(4))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    return proto[y] + 0.7 * torch.randn(n, 8, generator=g), y


def main():
    torch.manual_seed(0)
    x, y = data(256, 1)
    xt, yt = data(128, 2)
    model = Model()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(8):
        model.train()
        for idx in torch.randperm(len(x)).split(64):
            opt.zero_grad()
            loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        model.eval()
        with torch.no_grad():
            acc = (model(xt).argmax(1) == yt).float().mean().item()
        if epoch % 3 == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f} test acc {acc:.3f}")
    return acc


if __name__ == "__main__":
    main()
