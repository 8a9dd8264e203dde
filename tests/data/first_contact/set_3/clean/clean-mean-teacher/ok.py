"""Semi-supervised classification: a student with gradients and an averaged teacher without."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 10
    classes: int = 3
    labelled: int = 24
    batch: int = 16
    steps: int = 60
    rampup: int = 20
    consistency: float = 3.0
    ema_decay: float = 0.95
    lr: float = 5e-3
    seed: int = 2


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(cfg.dim, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
                                  nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.fc = nn.Linear(32, cfg.classes)

    def forward(self, x):
        return self.fc(self.body(x))


class MeanTeacher:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.centres = 1.2 * torch.randn(cfg.classes, cfg.dim, generator=self.gen)
        self.student = Net(cfg)
        self.teacher = copy.deepcopy(self.student)
        self.teacher.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=cfg.lr)
        self.few = self.sample(cfg.labelled)

    def sample(self, n, gen=None):
        gen = gen or self.gen
        y = torch.randint(0, self.cfg.classes, (n,), generator=gen)
        return self.centres[y] + torch.randn(n, self.cfg.dim, generator=gen), y

    def augment(self, x):
        return x + 0.3 * torch.randn(x.shape, generator=self.gen)

    @torch.no_grad()
    def update_teacher(self, step):
        decay = min(1 - 1 / (step + 1), self.cfg.ema_decay)
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.mul_(decay).add_(s, alpha=1 - decay)
        for t, s in zip(self.teacher.buffers(), self.student.buffers()):
            t.copy_(s)

    @torch.no_grad()
    def accuracy(self, model):
        mode = model.training
        model.eval()
        x, y = self.sample(300, torch.Generator().manual_seed(5))
        value = (model(x).argmax(1) == y).float().mean().item()
        model.train(mode)
        return value

    def step(self, i):
        pick = torch.randint(0, self.cfg.labelled, (self.cfg.batch // 2,), generator=self.gen)
        x_l, y_l = self.few[0][pick], self.few[1][pick]
        x_u, _ = self.sample(self.cfg.batch)
        x = torch.cat([x_l, x_u])
        logits = self.student(self.augment(x))
        self.teacher.eval()
        with torch.no_grad():
            target = self.teacher(self.augment(x)).softmax(-1)
        weight = self.cfg.consistency * min(1.0, i / self.cfg.rampup)
        loss = F.cross_entropy(logits[:len(y_l)], y_l) + weight * F.mse_loss(logits.softmax(-1), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.update_teacher(i)
        return loss.item()

    def fit(self):
        self.student.train()
        for i in range(self.cfg.steps):
            loss = self.step(i)
            if i % 20 == 0:
                print(f"step {i} loss {loss:.4f}")
        result = {"student": self.accuracy(self.student), "teacher": self.accuracy(self.teacher)}
        print(result)
        return result


def main():
    return MeanTeacher(Config()).fit()


if __name__ == "__main__":
    main()
