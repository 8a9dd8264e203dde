"""Meta-SGD on sine regression: the initialisation and one learning rate for each weight are meta-learned."""
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


@dataclass
class Config:
    inner_lr: float = 0.02
    inner_steps: int = 2
    meta_lr: float = 5e-3
    alpha_lr: float = 5e-3
    meta_batch: int = 6
    shots: int = 10
    iterations: int = 150
    eval_tasks: int = 60
    seed: int = 21


class SineTask:
    def __init__(self, generator):
        self.amplitude = 0.5 + 4.0 * torch.rand(1, generator=generator)
        self.phase = math.pi * torch.rand(1, generator=generator)
        self.generator = generator

    def sample(self, n):
        x = 10 * torch.rand(n, 1, generator=self.generator) - 5
        return x, self.amplitude * torch.sin(x - self.phase)


class Regressor(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden),
                                 nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)


class MetaSGD(nn.Module):
    def __init__(self, net, cfg):
        super().__init__()
        self.net = net
        self.cfg = cfg
        self.alpha = nn.ParameterDict({
            name.replace(".", "_"): nn.Parameter(torch.full_like(p, cfg.inner_lr))
            for name, p in net.named_parameters()
        })

    def adapt(self, x, y):
        fast = {name: p.clone() for name, p in self.net.named_parameters()}
        for _ in range(self.cfg.inner_steps):
            loss = F.mse_loss(functional_call(self.net, fast, (x,)), y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            for (name, w), g in zip(list(fast.items()), grads):
                fast[name] = w - self.alpha[name.replace(".", "_")] * g
        return fast

    def query_loss(self, task):
        fast = self.adapt(*task.sample(self.cfg.shots))
        x, y = task.sample(self.cfg.shots)
        return F.mse_loss(functional_call(self.net, fast, (x,)), y)


class MetaTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.generator = torch.Generator().manual_seed(cfg.seed)
        self.meta = MetaSGD(Regressor(), cfg)
        self.optimizer = torch.optim.Adam([
            {"params": self.meta.net.parameters(), "lr": cfg.meta_lr},
            {"params": self.meta.alpha.parameters(), "lr": cfg.alpha_lr},
        ])

    def train(self):
        for it in range(self.cfg.iterations):
            self.optimizer.zero_grad()
            total = 0.0
            for _ in range(self.cfg.meta_batch):
                loss = self.meta.query_loss(SineTask(self.generator)) / self.cfg.meta_batch
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(self.meta.parameters(), 10.0)
            self.optimizer.step()
            if it % 50 == 0:
                print(f"iteration {it} query loss {total:.4f}")

    def evaluate(self):
        generator = torch.Generator().manual_seed(1234)
        losses = [self.meta.query_loss(SineTask(generator)).item() for _ in range(self.cfg.eval_tasks)]
        return sum(losses) / len(losses)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = MetaTrainer(cfg)
    trainer.train()
    score = trainer.evaluate()
    spread = torch.cat([a.detach().flatten() for a in trainer.meta.alpha.values()]).std().item()
    print(f"post-adaptation loss {score:.4f}, spread of inner rates {spread:.5f}")
    return {"post_adaptation_loss": score, "std_of_alpha": spread}


if __name__ == "__main__":
    main()
