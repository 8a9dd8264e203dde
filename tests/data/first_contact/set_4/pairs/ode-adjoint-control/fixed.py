"""Controlled neural ODE whose gradients come from the adjoint method (memory independent of the steps)."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    dim: int = 2
    hidden: int = 24
    t1: float = 1.0
    steps: int = 8
    batch_size: int = 32
    iterations: int = 100
    lr: float = 1e-2
    seed: int = 8


def rk4(func, t, dt, y):
    k1 = func(t, y)
    k2 = func(t + dt / 2, tuple(a + dt / 2 * b for a, b in zip(y, k1)))
    k3 = func(t + dt / 2, tuple(a + dt / 2 * b for a, b in zip(y, k2)))
    k4 = func(t + dt, tuple(a + dt * b for a, b in zip(y, k3)))
    return tuple(a + dt / 6 * (p + 2 * q + 2 * r + s) for a, p, q, r, s in zip(y, k1, k2, k3, k4))


def integrate(func, y, t0, t1, steps):
    dt = (t1 - t0) / steps
    for i in range(steps):
        y = rk4(func, t0 + i * dt, dt, y)
    return y


class OdeintAdjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, func, t1, steps, y0, *params):
        ctx.func, ctx.t1, ctx.steps = func, t1, steps
        with torch.no_grad():
            y1, = integrate(lambda t, s: (func(t, s[0]),), (y0,), 0.0, t1, steps)
        ctx.save_for_backward(y1, *params)
        return y1

    @staticmethod
    def backward(ctx, grad_y):
        y1, *params = ctx.saved_tensors
        func = ctx.func

        def augmented(t, state):
            y, a = state[0], state[1]
            with torch.enable_grad():
                y = y.detach().requires_grad_(True)
                f = func(t, y)
                vjp_y, *vjp_params = torch.autograd.grad(f, [y] + params, -a, allow_unused=True)
            vjp_params = [torch.zeros_like(p) if v is None else v for p, v in zip(params, vjp_params)]
            return (f.detach(), vjp_y, *vjp_params)

        state = (y1, grad_y, *[torch.zeros_like(p) for p in params])
        with torch.no_grad():
            _, grad_y0, *grad_params = integrate(augmented, state, ctx.t1, 0.0, ctx.steps)
        return (None, None, None, grad_y0, *grad_params)


def odeint_adjoint(func, y0, t1, steps):
    return OdeintAdjoint.apply(func, t1, steps, y0, *func.parameters())


class Control(nn.Module):
    """Open-loop control signal u(t)."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, dim))

    def forward(self, t):
        return self.net(torch.as_tensor([[t]], dtype=torch.float32))


class ODEFunc(nn.Module):
    def __init__(self, dim, hidden, control):
        super().__init__()
        self.drift = nn.Sequential(nn.Linear(dim, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, dim, bias=False))
        self.control = control

    def forward(self, t, y):
        return self.drift(y) + self.control(t)


class ControlledODE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.control = Control(cfg.dim, cfg.hidden)
        self.func = ODEFunc(cfg.dim, cfg.hidden, self.control)
        self.readout = nn.Linear(cfg.dim, cfg.dim, bias=False)

    def forward(self, y0):
        return self.readout(odeint_adjoint(self.func, y0, self.cfg.t1, self.cfg.steps))


def make_batch(cfg, generator):
    y0 = torch.randn(cfg.batch_size, cfg.dim, generator=generator)
    rotated = torch.stack([-y0[:, 1], y0[:, 0]], dim=1)
    return y0, 0.8 * rotated + torch.tensor([1.5, -0.5])


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    model = ControlledODE(cfg)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for iteration in range(cfg.iterations):
        y0, y1 = make_batch(cfg, generator)
        optimizer.zero_grad()
        loss = (model(y0) - y1).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        if iteration % 50 == 0:
            print(f"iteration {iteration} loss {loss.item():.5f}")
    unchanged = [n for n, p in model.named_parameters() if torch.equal(p, start[n])]
    return {"loss": loss.item(), "unchanged": len(unchanged), "control_grads":
            sum(p.grad is not None for p in model.control.parameters())}


if __name__ == "__main__":
    main()
