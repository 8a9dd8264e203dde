"""Mean teacher for unsupervised domain adaptation of a small classifier."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 8
    classes: int = 4
    hidden: int = 32
    lr: float = 5e-3
    base_tau: float = 0.9
    final_tau: float = 0.98
    warmup_steps: int = 40
    steps: int = 160
    batch_size: int = 64
    threshold: float = 0.5
    seed: int = 6


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(cfg.dim, cfg.hidden),
            nn.BatchNorm1d(cfg.hidden),
            nn.ReLU(),
            nn.Linear(cfg.hidden, cfg.hidden),
            nn.BatchNorm1d(cfg.hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(cfg.hidden, cfg.classes)

    def forward(self, x):
        return self.head(self.layers(x))


class MomentumUpdater:
    def __init__(self, base_tau, final_tau, total):
        self.base_tau, self.final_tau, self.total = base_tau, final_tau, total
        self.cur_tau = base_tau

    @torch.no_grad()
    def update(self, online_net, momentum_net):
        for op, mp in zip(online_net.parameters(), momentum_net.parameters()):
            mp.mul_(self.cur_tau).add_(op, alpha=1 - self.cur_tau)
        for ob, mb in zip(online_net.buffers(), momentum_net.buffers()):
            mb.copy_(ob)

    def update_tau(self, step):
        self.cur_tau = self.final_tau - (self.final_tau - self.base_tau) * (1 - step / self.total)


class Domains:
    def __init__(self, cfg):
        self.cfg = cfg
        self.centers = 2.0 * torch.randn(cfg.classes, cfg.dim)
        self.shift = 4.0 + torch.randn(cfg.dim)

    def source(self, n):
        y = torch.randint(0, self.cfg.classes, (n,))
        return 3.0 + self.centers[y] + 0.7 * torch.randn(n, self.cfg.dim), y

    def target(self, n):
        x, y = self.source(n)
        return x + 0.25 * self.shift, y


class Adaptation:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.data = Domains(cfg)
        self.student = Encoder(cfg)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False).eval()
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=cfg.lr, momentum=0.9, nesterov=True)
        self.momentum = MomentumUpdater(cfg.base_tau, cfg.final_tau, cfg.steps)
        self.history = []

    def training_step(self, step):
        x_s, y_s = self.data.source(self.cfg.batch_size)
        x_t, _ = self.data.target(self.cfg.batch_size)
        logits_s, logits_t = self.student(torch.cat([x_s, x_t])).chunk(2)
        loss = F.cross_entropy(logits_s, y_s)
        kept = 0.0
        if step >= self.cfg.warmup_steps:
            with torch.no_grad():
                confidence, pseudo = self.teacher(x_t).softmax(-1).max(-1)
                mask = (confidence > self.cfg.threshold).float()
            target_loss = (F.cross_entropy(logits_t, pseudo, reduction="none") * mask).mean()
            loss = loss + target_loss
            kept = mask.mean().item()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.momentum.update(self.student, self.teacher)
        self.momentum.update_tau(step)
        return loss.item(), kept

    @torch.no_grad()
    def evaluate(self):
        x, y = self.data.target(512)
        self.student.eval()
        result = {
            "student": (self.student(x).argmax(-1) == y).float().mean().item(),
            "teacher": (self.teacher(x).argmax(-1) == y).float().mean().item(),
        }
        self.student.train()
        return result

    def fit(self):
        for step in range(self.cfg.steps):
            loss, kept = self.training_step(step)
            if (step + 1) % 40 == 0:
                self.history.append(self.evaluate())
                acc = self.history[-1]
                print(f"step {step + 1} loss {loss:.3f} kept {kept:.2f} student {acc['student']:.3f} teacher {acc['teacher']:.3f}")
        return self


def main():
    return Adaptation(Config()).fit()


if __name__ == "__main__":
    main()
