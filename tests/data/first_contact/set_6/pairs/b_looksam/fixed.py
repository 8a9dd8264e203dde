"""Periodic sharpness-aware optimizer around a base optimizer."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class LookSAM(torch.optim.Optimizer):
    """Every k-th step computes the perturbed gradient; between, its component
    orthogonal to the plain gradient is reused."""

    def __init__(self, params, base_optimizer, k=5, rho=0.05, alpha=0.7):
        self.base_optimizer = base_optimizer
        self.k, self.alpha = k, alpha
        super().__init__(params, dict(rho=rho))
        self.param_groups = base_optimizer.param_groups
        for group in self.param_groups:
            group.setdefault("rho", rho)
        self.steps = 0

    def _params(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    yield group, p

    def _grad_norm(self, eps=1e-12):
        norms = [p.grad.norm() for _, p in self._params()]
        return torch.stack(norms).norm() + eps

    @torch.no_grad()
    def perturb_weights(self, state_g_key="old_grad"):
        norm = self._grad_norm()
        for group, p in self._params():
            self.state[p][state_g_key] = p.grad.clone()
            e_w = p.grad * (group["rho"] / norm)
            p.add_(e_w)
            self.state[p]["e_w"] = e_w

    @torch.no_grad()
    def unperturb(self):
        for _, p in self._params():
            if "e_w" in self.state[p]:
                p.sub_(self.state[p].pop("e_w"))

    @torch.no_grad()
    def compute_gv(self):
        for _, p in self._params():
            if "old_grad" not in self.state[p]:
                continue
            old_grad = self.state[p]["old_grad"]
            coef = (old_grad * p.grad).sum() / (old_grad.pow(2).sum() + 1e-12)
            self.state[p]["gv"] = p.grad - coef * old_grad

    @torch.no_grad()
    def apply_gv(self):
        for _, p in self._params():
            gv = self.state[p].get("gv")
            if gv is None:
                continue
            scale = p.grad.norm() / (gv.norm() + 1e-8)
            p.grad.add_(gv * scale, alpha=self.alpha)

    def zero_grad(self, set_to_none=True):
        self.base_optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        if self.steps % self.k == 0:
            self.perturb_weights()
            with torch.enable_grad():
                closure()
            self.unperturb()
            self.compute_gv()
        else:
            self.apply_gv()
        self.base_optimizer.step()
        self.steps += 1
        return loss


def make_tasks(n=600, dim=10):
    g = torch.Generator().manual_seed(2)
    x = torch.randn(n, dim, generator=g)
    logits = torch.stack([x[:, 0] * x[:, 1], x[:, 2] - x[:, 3] ** 2, x[:, 4]], dim=1)
    return x, logits.argmax(dim=1)


def train(model, optimizer, x, y, steps=200, batch_size=64):
    for step in range(steps):
        idx = torch.randint(0, len(x), (batch_size,))

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        if step % 40 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")


def main():
    torch.manual_seed(0)
    x, y = make_tasks()
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                          nn.Linear(64, 3))
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = LookSAM(model.parameters(), base, k=5, rho=0.05)
    train(model, optimizer, x[:400], y[:400])
    with torch.no_grad():
        test = F.cross_entropy(model(x[400:]), y[400:]).item()
    print(f"test loss {test:.4f}")
    return model, optimizer


if __name__ == "__main__":
    main()
