"""Regression with the diffGrad optimizer: the friction term looks at the change of the gradient."""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.optimizer import Optimizer


class DiffGrad(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        if lr <= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                    state["previous_grad"] = torch.zeros_like(p)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                previous_grad = state["previous_grad"]
                state["step"] += 1
                if group["weight_decay"] != 0:
                    grad.add_(p, alpha=group["weight_decay"])
                exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                denom = exp_avg_sq.sqrt().add_(group["eps"])
                bias1 = 1 - beta1 ** state["step"]
                bias2 = 1 - beta2 ** state["step"]

                friction = torch.sigmoid((previous_grad - grad).abs())
                state["previous_grad"] = grad
                state["friction"] = friction.mean().item()

                step_size = group["lr"] * math.sqrt(bias2) / bias1
                p.addcdiv_(exp_avg * friction, denom, value=-step_size)
        return loss


@dataclass
class Config:
    lr: float = 5e-3
    weight_decay: float = 1e-5
    epochs: int = 30
    batch_size: int = 64
    seed: int = 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


class Trainer:
    def __init__(self, cfg, model):
        self.cfg = cfg
        self.model = model
        self.optimizer = DiffGrad(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=20, gamma=0.3)
        self.loss_fn = nn.MSELoss()

    def run_epoch(self, x, y):
        self.model.train()
        total = 0.0
        perm = torch.randperm(len(x))
        for i in range(0, len(x), self.cfg.batch_size):
            idx = perm[i:i + self.cfg.batch_size]
            self.optimizer.zero_grad(set_to_none=False)
            loss = self.loss_fn(self.model(x[idx]), y[idx])
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(idx)
        self.scheduler.step()
        return total / len(x)

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        return self.loss_fn(self.model(x), y).item()


def target_fn(x):
    return 3 * torch.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2] ** 2 - 2 * x[:, 3]


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    x = torch.randn(512, 6)
    y = target_fn(x)
    xv = torch.randn(256, 6)
    yv = target_fn(xv)
    trainer = Trainer(cfg, Net())
    for epoch in range(cfg.epochs):
        train = trainer.run_epoch(x, y)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1} train {train:.4f} val {trainer.evaluate(xv, yv):.4f}")
    frictions = [s["friction"] for s in trainer.optimizer.state.values()]
    return {"val_loss": trainer.evaluate(xv, yv), "mean_friction": sum(frictions) / len(frictions)}


if __name__ == "__main__":
    main()
