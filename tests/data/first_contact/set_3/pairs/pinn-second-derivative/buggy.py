"""Physics-informed network for the heat equation u_t = nu * u_xx on [0, 1] x [0, 1]."""
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    nu: float = 0.1
    width: int = 24
    depth: int = 3
    n_collocation: int = 256
    n_boundary: int = 64
    n_initial: int = 64
    steps: int = 900
    lr: float = 5e-3
    w_ic: float = 10.0
    w_bc: float = 10.0
    resample_every: int = 50
    seed: int = 0


class MLP(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        layers.append(nn.Linear(width, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, xt):
        return self.net(xt)


class HeatProblem:
    """Columns of every point tensor: 0 is x, 1 is t."""

    def __init__(self, cfg):
        self.cfg = cfg

    def exact(self, xt):
        decay = torch.exp(-self.cfg.nu * math.pi ** 2 * xt[:, 1:2])
        return decay * torch.sin(math.pi * xt[:, 0:1])

    def sample(self):
        cfg = self.cfg
        interior = torch.rand(cfg.n_collocation, 2)
        initial = torch.stack([torch.rand(cfg.n_initial), torch.zeros(cfg.n_initial)], dim=1)
        side = torch.randint(0, 2, (cfg.n_boundary,)).float()
        boundary = torch.stack([side, torch.rand(cfg.n_boundary)], dim=1)
        return interior, initial, boundary

    def residual(self, model, xt):
        xt = xt.clone().requires_grad_(True)
        u = model(xt)
        du = torch.autograd.grad(u, xt, grad_outputs=torch.ones_like(u), create_graph=True)[0]
        d2u = torch.autograd.grad(du, xt, grad_outputs=torch.ones_like(du), create_graph=True)[0]
        u_t = du[:, 1:2]
        u_xx = d2u[:, 0:1]
        return u_t - self.cfg.nu * u_xx


class PINNTrainer:
    def __init__(self, cfg, model, problem):
        self.cfg = cfg
        self.model = model
        self.problem = problem
        self.optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, cfg.steps)
        self.history = []

    def losses(self, batch):
        interior, initial, boundary = batch
        pde = self.problem.residual(self.model, interior).pow(2).mean()
        ic = (self.model(initial) - self.problem.exact(initial)).pow(2).mean()
        bc = self.model(boundary).pow(2).mean()
        return pde, ic, bc

    def fit(self):
        batch = self.problem.sample()
        for step in range(self.cfg.steps):
            if step % self.cfg.resample_every == 0:
                batch = self.problem.sample()
            pde, ic, bc = self.losses(batch)
            loss = pde + self.cfg.w_ic * ic + self.cfg.w_bc * bc
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            if step % 300 == 0:
                self.history.append(loss.item())
                print(f"step {step} pde {pde.item():.5f} ic {ic.item():.5f} bc {bc.item():.5f}")
        return loss.item()

    @torch.no_grad()
    def relative_error(self):
        g = torch.linspace(0, 1, 41)
        xt = torch.cartesian_prod(g, g)
        exact = self.problem.exact(xt)
        return ((self.model(xt) - exact).norm() / exact.norm()).item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = PINNTrainer(cfg, MLP(cfg.width, cfg.depth), HeatProblem(cfg))
    final = trainer.fit()
    err = trainer.relative_error()
    print(f"final loss {final:.5f} relative error {err:.4f}")
    return {"final_loss": final, "relative_error": err}


if __name__ == "__main__":
    main()
