"""Self-adaptive physics-informed network for a 1-D Poisson problem."""
import math

import torch
import torch.nn as nn


class FeedForward(nn.Module):
    def __init__(self, hidden=20, layers=2):
        super().__init__()
        dims = [1] + [hidden] * layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.out(x)


class PoissonProblem:
    """u'' = f on [-1, 1], u(+-1) = 0."""

    def __init__(self, n_pde=40, sharpness=8.0):
        self.k = sharpness
        self.points = {"pde": torch.linspace(-1, 1, n_pde)[:, None], "bc": torch.tensor([[-1.0], [1.0]])}

    def solution(self, x):
        return torch.tanh(self.k * x) - x * math.tanh(self.k)

    def residuals(self, net):
        x = self.points["pde"].clone().requires_grad_()
        u = net(x)
        (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        (ddu,) = torch.autograd.grad(du, x, torch.ones_like(u), create_graph=True)
        t = torch.tanh(self.k * x.detach())
        f = -2 * self.k ** 2 * t * (1 - t ** 2)
        return {"pde": (ddu - f) / self.k ** 2, "bc": net(self.points["bc"])}


class Mask(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n, 1))

    def forward(self):
        return 10 * torch.sigmoid(self.weight)


class SelfAdaptivePINN(nn.Module):
    def __init__(self, problem, net):
        super().__init__()
        self.problem, self.net = problem, net
        self.weights = nn.ModuleDict({name: Mask(1) for name in problem.points})

    def setup(self):
        for name, pts in self.problem.points.items():
            self.weights[name] = Mask(pts.size(0))

    def configure_optimizers(self):
        model_opt = torch.optim.Adam(self.net.parameters(), lr=3e-3)
        weight_opt = torch.optim.Adam(self.weights.parameters(), lr=5e-2, maximize=True)
        return model_opt, weight_opt

    def training_step(self, optimizers):
        model_opt, weight_opt = optimizers
        for opt in optimizers:
            opt.zero_grad()
        res = self.problem.residuals(self.net)
        parts = {k: (self.weights[k]() * r ** 2).mean() for k, r in res.items()}
        loss = sum(parts.values())
        loss.backward()
        model_opt.step()
        weight_opt.step()
        return loss.item(), {k: (r ** 2).mean().item() for k, r in res.items()}


class Trainer:
    def __init__(self, max_epochs, log_every):
        self.max_epochs, self.log_every = max_epochs, log_every

    def fit(self, module):
        module.setup()
        optimizers = module.configure_optimizers()
        module.train()
        schedulers = [torch.optim.lr_scheduler.StepLR(o, 200, 0.8) for o in optimizers]
        for epoch in range(self.max_epochs):
            loss, raw = module.training_step(optimizers)
            for s in schedulers:
                s.step()
            if epoch % self.log_every == 0:
                print(f"epoch {epoch}: loss {loss:.5f} " + " ".join(f"{k} {v:.5f}" for k, v in raw.items()))
        return loss


@torch.no_grad()
def test_error(module):
    x = torch.linspace(-1, 1, 201)[:, None]
    u = module.problem.solution(x)
    return ((module.net(x) - u).norm() / u.norm()).item()


def main():
    torch.manual_seed(2)
    module = SelfAdaptivePINN(PoissonProblem(), FeedForward())
    Trainer(600, 200).fit(module)
    spread = {k: (m().max() - m().min()).item() for k, m in module.weights.items()}
    err = test_error(module)
    print(f"relative L2 error {err:.4f}")
    return {"error": err, "pde_weight_spread": spread["pde"]}


if __name__ == "__main__":
    main()
