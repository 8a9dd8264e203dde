"""Few-shot sinusoid regression with MAML (Finn et al., 2017)."""
import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_


@dataclass
class Config:
    hidden: int = 32
    inner_lr: float = 0.02
    inner_steps: int = 3
    outer_lr: float = 5e-3
    meta_batch: int = 4
    shots: int = 10
    iterations: int = 90
    eval_every: int = 30
    grad_clip: float = 5.0
    seed: int = 0


class SineTasks:
    def __init__(self, shots, generator):
        self.shots = shots
        self.generator = generator

    def sample(self):
        amplitude = 0.5 + 2.0 * torch.rand(1, generator=self.generator)
        phase = math.pi * torch.rand(1, generator=self.generator)
        x = 10 * torch.rand(2 * self.shots, 1, generator=self.generator) - 5
        y = amplitude * torch.sin(x + phase)
        return (x[: self.shots], y[: self.shots]), (x[self.shots:], y[self.shots:])


class Regressor(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, hidden), nn.Tanh(),
            nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.net(x)


class MAML:
    def __init__(self, model, config):
        self.model = model
        self.config = config
        self.meta_optimizer = torch.optim.Adam(model.parameters(), lr=config.outer_lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.meta_optimizer, step_size=60, gamma=0.5)

    def adapt(self, x, y):
        learner = copy.deepcopy(self.model)
        for _ in range(self.config.inner_steps):
            loss = F.mse_loss(learner(x), y)
            grads = torch.autograd.grad(loss, list(learner.parameters()), create_graph=True)
            for param, grad in zip(learner.parameters(), grads):
                param.data -= self.config.inner_lr * grad
        return learner

    def meta_train_step(self, tasks):
        self.meta_optimizer.zero_grad()
        meta_loss = 0.0
        for (x_spt, y_spt), (x_qry, y_qry) in tasks:
            learner = self.adapt(x_spt, y_spt)
            meta_loss = meta_loss + F.mse_loss(learner(x_qry), y_qry)
        meta_loss = meta_loss / len(tasks)
        meta_loss.backward()
        clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        self.meta_optimizer.step()
        self.scheduler.step()
        return meta_loss.item()

    def evaluate(self, tasks):
        losses = []
        for (x_spt, y_spt), (x_qry, y_qry) in tasks:
            learner = self.adapt(x_spt, y_spt)
            with torch.no_grad():
                losses.append(F.mse_loss(learner(x_qry), y_qry).item())
        return sum(losses) / len(losses)


def main(config=Config()):
    torch.manual_seed(config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    source = SineTasks(config.shots, generator)
    held_out = [source.sample() for _ in range(20)]
    learner = MAML(Regressor(config.hidden), config)
    history = []
    for iteration in range(1, config.iterations + 1):
        loss = learner.meta_train_step([source.sample() for _ in range(config.meta_batch)])
        if iteration % config.eval_every == 0:
            history.append(learner.evaluate(held_out))
            print(f"iter {iteration:4d}  meta loss {loss:.4f}  held-out {history[-1]:.4f}")
    return {"model": learner.model, "history": history}


if __name__ == "__main__":
    main()
