"""Learn dynamics and a feedback policy through an ODE solver with the adjoint method."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


@dataclass
class Problem:
    state: int = 2
    hidden: int = 16
    horizon: float = 2.0
    steps: int = 8
    batch: int = 16
    iterations: int = 60
    effort: float = 1e-3
    lr: float = 2e-2
    seed: int = 9


def rk4(func, y, t0, h):
    k1 = func(t0, y)
    k2 = func(t0 + h / 2, y + h / 2 * k1)
    k3 = func(t0 + h / 2, y + h / 2 * k2)
    k4 = func(t0 + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class OdeintAdjoint(Function):
    """Constant memory: each step is recomputed while going backward in time."""

    @staticmethod
    def forward(ctx, func, y0, times, *params):
        states = [y0]
        with torch.no_grad():
            for t0, t1 in zip(times[:-1], times[1:]):
                states.append(rk4(func, states[-1], t0, t1 - t0))
        ctx.func = func
        ctx.save_for_backward(times, torch.stack(states), *params)
        return states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, adjoint):
        times, states, *params = ctx.saved_tensors
        totals = [torch.zeros_like(p) for p in params]
        for k in range(len(times) - 2, -1, -1):
            with torch.enable_grad():
                y = states[k].detach().requires_grad_(True)
                y_next = rk4(ctx.func, y, times[k], times[k + 1] - times[k])
            adjoint, *grads = torch.autograd.grad(y_next, (y, *params), adjoint, allow_unused=True)
            for total, grad in zip(totals, grads):
                if grad is not None:
                    total += grad
        return (None, adjoint, None, *totals)


def odeint_adjoint(func, y0, times):
    return OdeintAdjoint.apply(func, y0, times, *func.parameters())


def mlp(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


class ControlledDynamics(nn.Module):
    def __init__(self, residual, controllers):
        super().__init__()
        self.residual = residual
        self.controllers = nn.ModuleList(controllers)
        self.damping = nn.Parameter(torch.tensor(0.1))

    def control(self, y):
        return sum(controller(y) for controller in self.controllers)

    def forward(self, t, y):
        position, velocity = y[:, :1], y[:, 1:]
        force = self.residual(y) + self.control(y) - self.damping * velocity + torch.sin(position)
        return torch.cat([velocity, force], dim=1)


def build(problem):
    controllers = nn.ModuleList(mlp(problem.state, problem.hidden, 1) for _ in range(2))
    dynamics = ControlledDynamics(mlp(problem.state, 4, 1), controllers)
    return dynamics, controllers


def main(problem=Problem()):
    torch.manual_seed(problem.seed)
    dynamics, controllers = build(problem)
    trainable = {id(p): p for module in (dynamics, controllers) for p in module.parameters()}
    optimizer = torch.optim.Adam(trainable.values(), lr=problem.lr)
    times = torch.linspace(0, problem.horizon, problem.steps + 1)
    cost = None
    for iteration in range(1, problem.iterations + 1):
        y0 = torch.randn(problem.batch, problem.state)
        final = odeint_adjoint(dynamics, y0, times)
        terminal = final.pow(2).sum(1).mean()
        cost = terminal + problem.effort * dynamics.control(y0).pow(2).mean()
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        if iteration % 20 == 0:
            print(f"iter {iteration:3d}  terminal {terminal.item():.4f}")
    return {"terminal": terminal.item(), "controllers": controllers}


if __name__ == "__main__":
    main()
