"""Heat equation with a physics-informed network whose loss terms are balanced by their gradients."""
import math

import torch
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        layers.append(nn.Linear(width, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, points):
        return self.net(points)


class HeatProblem:
    diffusivity = 0.4

    def __init__(self, n=48):
        g = torch.Generator().manual_seed(3)
        x = torch.rand(n, 1, generator=g)
        t = torch.rand(n, 1, generator=g)
        self.points = {
            "interior": torch.cat([x, t], 1),
            "boundary": torch.cat([torch.randint(0, 2, (n, 1), generator=g).float(), t], 1),
            "initial": torch.cat([x, torch.zeros(n, 1)], 1),
        }

    def residual(self, name, model):
        points = self.points[name]
        if name == "interior":
            points = points.clone().requires_grad_(True)
            u = model(points)
            grad = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
            u_xx = torch.autograd.grad(grad[:, 0].sum(), points, create_graph=True)[0][:, :1]
            return grad[:, 1:] - self.diffusivity * u_xx
        if name == "boundary":
            return model(points)
        return model(points) - torch.sin(math.pi * points[:, :1])

    def solution(self, points):
        decay = torch.exp(-self.diffusivity * math.pi**2 * points[:, 1:])
        return torch.sin(math.pi * points[:, :1]) * decay


class SelfAdaptiveWeighting:
    def __init__(self, update_every_n_steps=5, alpha=0.6):
        self.update_every_n_steps = update_every_n_steps
        self.alpha = alpha
        self.weights = {}

    def _gradient_norm(self, loss, model):
        loss.backward(retain_graph=True)
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return torch.cat(gradients).norm().detach()

    def update(self, step, losses, model):
        if step % self.update_every_n_steps and self.weights:
            return
        norms = {name: self._gradient_norm(loss, model) for name, loss in losses.items()}
        total = sum(norms.values())
        for name, norm in norms.items():
            fresh = (total / (norm + 1e-8)).sqrt().clamp(max=8.0)
            previous = self.weights.get(name, fresh)
            self.weights[name] = self.alpha * previous + (1 - self.alpha) * fresh

    def aggregate(self, losses):
        return sum(self.weights[name] * loss for name, loss in losses.items())


class PINNSolver:
    def __init__(self, problem, model, weighting, lr=8e-3):
        self.problem = problem
        self.model = model
        self.weighting = weighting
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.logged = []

    def condition_losses(self):
        return {name: self.problem.residual(name, self.model).pow(2).mean() for name in self.problem.points}

    def training_step(self, step):
        losses = self.condition_losses()
        self.weighting.update(step, losses, self.model)
        return self.weighting.aggregate(losses), losses

    def fit(self, steps):
        for step in range(steps):
            loss, parts = self.training_step(step)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.logged.append({name: value.item() for name, value in parts.items()})
            if step % 50 == 0:
                text = " ".join(f"{k} {float(w):.2f}" for k, w in self.weighting.weights.items())
                print(f"step {step} loss {loss.item():.5f} weights: {text}")

    @torch.no_grad()
    def error(self, n=400):
        points = torch.rand(n, 2, generator=torch.Generator().manual_seed(17))
        return (self.model(points) - self.problem.solution(points)).pow(2).mean().sqrt().item()


def main(steps=300):
    torch.manual_seed(0)
    solver = PINNSolver(HeatProblem(), FeedForward(), SelfAdaptiveWeighting())
    solver.fit(steps)
    print(f"rmse {solver.error():.5f}")
    return solver


if __name__ == "__main__":
    main()
