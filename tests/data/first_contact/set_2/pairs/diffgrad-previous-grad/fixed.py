"""Train a small regressor with a from-scratch diffGrad optimizer (Dubey et al., 2019)."""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.optimizer import Optimizer


@dataclass
class TrainConfig:
    features: int = 8
    hidden: int = 24
    samples: int = 256
    batch_size: int = 32
    lr: float = 3e-3
    weight_decay: float = 1e-4
    epochs: int = 20
    seed: int = 7


class DiffGrad(Optimizer):
    """Adam whose step is damped where the gradient changes little (friction coefficient)."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        if lr <= 0.0:
            raise ValueError(f"invalid learning rate: {lr}")
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

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
                state["step"] += 1
                if group["weight_decay"] != 0:
                    grad.add_(p, alpha=group["weight_decay"])
                exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                denom = exp_avg_sq.sqrt().add_(group["eps"])
                correction1 = 1 - beta1 ** state["step"]
                correction2 = 1 - beta2 ** state["step"]
                diff = (state["previous_grad"] - grad).abs()
                friction = torch.sigmoid(diff)
                state["previous_grad"] = grad.clone()
                step_size = group["lr"] * math.sqrt(correction2) / correction1
                p.addcdiv_(exp_avg * friction, denom, value=-step_size)
        return loss


class Regressor(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(cfg.features, cfg.hidden), nn.ReLU(),
                                    nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(),
                                    nn.Linear(cfg.hidden, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def make_problem(cfg):
    x = torch.randn(cfg.samples, cfg.features)
    y = 6 * torch.sin(x[:, 0]) + 3 * x[:, 1] * x[:, 2]
    return x, y


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Regressor(cfg)
        self.optimizer = DiffGrad(self.model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
        self.criterion = nn.MSELoss()

    def fit(self, x, y):
        loss_value = 0.0
        for epoch in range(self.cfg.epochs):
            order = torch.randperm(len(x))
            total = 0.0
            for index in order.split(self.cfg.batch_size):
                loss = self.criterion(self.model(x[index]), y[index])
                self.optimizer.zero_grad(set_to_none=False)
                loss.backward()
                self.optimizer.step()
                total += loss.item() * len(index)
            loss_value = total / len(x)
            if epoch % 5 == 4:
                print(f"epoch {epoch + 1:3d}  train mse {loss_value:.4f}")
        return loss_value


def main(cfg=TrainConfig()):
    torch.manual_seed(cfg.seed)
    x, y = make_problem(cfg)
    trainer = Trainer(cfg)
    final = trainer.fit(x, y)
    return {"loss": final, "optimizer": trainer.optimizer, "model": trainer.model}


if __name__ == "__main__":
    main()
