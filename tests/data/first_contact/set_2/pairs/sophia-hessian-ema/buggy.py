"""Sophia-H style optimizer: clipped updates preconditioned by a Hutchinson estimate of diag(H)."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer


@dataclass
class RunConfig:
    vocab: int = 16
    context: int = 4
    dim: int = 12
    hidden: int = 32
    batch: int = 32
    steps: int = 150
    hessian_interval: int = 5
    lr: float = 2e-2
    seed: int = 10


class SophiaH(Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.95), rho=1.0, eps=1e-6, weight_decay=0.0, update_period=10):
        super().__init__(params, dict(lr=lr, betas=betas, rho=rho, eps=eps, weight_decay=weight_decay))
        self.update_period = update_period
        self.iteration = 0

    def needs_hessian(self):
        return self.iteration % self.update_period == 0

    def update_hessian(self, loss):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.requires_grad]
            grads = torch.autograd.grad(loss, params, create_graph=True)
            probes = [torch.randint_like(p, 2) * 2 - 1 for p in params]
            products = torch.autograd.grad(grads, params, grad_outputs=probes, create_graph=True)
            beta = group["betas"][1]
            for p, product, probe in zip(params, products, probes):
                state = self.state[p]
                if "hessian" not in state:
                    state["hessian"] = torch.zeros_like(p)
                state["hessian"] = beta * state["hessian"] + (1 - beta) * product * probe

    @torch.no_grad()
    def step(self, closure=None):
        self.iteration += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"]
                momentum.mul_(group["betas"][0]).add_(p.grad, alpha=1 - group["betas"][0])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                ratio = momentum / (state["hessian"].clamp(min=0) * group["rho"] + group["eps"])
                p.add_(ratio.clamp(-1, 1), alpha=-group["lr"])


class NextToken(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.context * cfg.dim, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, cfg.vocab))

    def forward(self, tokens):
        return self.mlp(self.embed(tokens).flatten(1))


class TokenStream:
    def __init__(self, cfg):
        self.cfg = cfg
        self.transition = torch.softmax(3 * torch.randn(cfg.vocab, cfg.vocab), dim=-1)

    def batch(self):
        tokens = torch.randint(self.cfg.vocab, (self.cfg.batch, 1))
        for _ in range(self.cfg.context):
            following = torch.multinomial(self.transition[tokens[:, -1]], 1)
            tokens = torch.cat([tokens, following], dim=1)
        return tokens[:, :-1], tokens[:, -1]


def main(cfg=RunConfig()):
    torch.manual_seed(cfg.seed)
    data = TokenStream(cfg)
    model = NextToken(cfg)
    optimizer = SophiaH(model.parameters(), lr=cfg.lr, update_period=cfg.hessian_interval, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=cfg.steps)
    running = 0.0
    for step in range(1, cfg.steps + 1):
        tokens, labels = data.batch()
        loss = F.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        if optimizer.needs_hessian():
            optimizer.update_hessian(loss)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        running += loss.item()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {running / 50:.4f}")
            running = 0.0
    return {"loss": loss.item(), "optimizer": optimizer}


if __name__ == "__main__":
    main()
