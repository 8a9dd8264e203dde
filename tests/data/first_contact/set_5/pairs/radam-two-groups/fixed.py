"""Rectified Adam, used to fine-tune a small network with a slow backbone and a fast head."""
import math

import torch
import torch.nn as nn
from torch.optim.optimizer import Optimizer


class RAdam(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        if lr < 0.0:
            raise ValueError(f"invalid learning rate: {lr}")
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self._buffer = [[None, None, None] for _ in range(10)]
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
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                exp_avg_sq.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                exp_avg.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["step"] += 1

                buffered = self._buffer[state["step"] % 10]
                if state["step"] == buffered[0]:
                    n_sma, step_size = buffered[1], buffered[2]
                else:
                    buffered[0] = state["step"]
                    beta2_t = beta2 ** state["step"]
                    n_sma_max = 2 / (1 - beta2) - 1
                    n_sma = n_sma_max - 2 * state["step"] * beta2_t / (1 - beta2_t)
                    buffered[1] = n_sma
                    if n_sma >= 5:
                        rect = math.sqrt((1 - beta2_t) * (n_sma - 4) / (n_sma_max - 4) * (n_sma - 2) / n_sma
                                         * n_sma_max / (n_sma_max - 2))
                        step_size = rect / (1 - beta1 ** state["step"])
                    else:
                        step_size = 1 / (1 - beta1 ** state["step"])
                    buffered[2] = step_size

                if group["weight_decay"] != 0:
                    p.add_(p, alpha=-group["weight_decay"] * group["lr"])
                if n_sma >= 5:
                    p.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(group["eps"]), value=-step_size * group["lr"])
                else:
                    p.add_(exp_avg, alpha=-step_size * group["lr"])
        return loss


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.backbone = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU())

    def forward(self, x):
        return self.head(self.backbone(x))


def make_optimizer(net, head_lr, backbone_lr):
    return RAdam([
        {"params": net.head.parameters(), "lr": head_lr},
        {"params": net.backbone.parameters(), "lr": backbone_lr},
    ])


def main(steps=60):
    torch.manual_seed(5)
    x = torch.randn(256, 10)
    y = (x[:, :3] + 0.3 * x[:, 3:6]).argmax(1)
    net = Net()
    start = [p.detach().clone() for p in net.backbone.parameters()]
    optimizer = make_optimizer(net, head_lr=2e-2, backbone_lr=2e-5)
    for step in range(steps):
        pick = torch.randint(0, 256, (64,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"{step:3d} {loss.item():.4f}")
    return net, start


if __name__ == "__main__":
    main()
