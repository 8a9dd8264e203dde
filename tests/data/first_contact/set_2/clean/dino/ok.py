"""Self-distillation without labels: momentum teacher, centring, a last layer that waits."""
import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    dim: int = 20
    prototypes: int = 24
    batch: int = 48
    epochs: int = 4
    steps: int = 20
    freeze_last_layer: int = 1
    teacher_temp: float = 0.06
    student_temp: float = 0.1
    lr: float = 2e-3
    seed: int = 34


class Backbone(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.dim, 48), nn.BatchNorm1d(48), nn.GELU(), nn.Linear(48, 32))
        self.head = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16))
        self.last_layer = nn.utils.parametrizations.weight_norm(nn.Linear(16, cfg.prototypes, bias=False))
        self.last_layer.parametrizations.weight.original0.data.fill_(1)
        self.last_layer.parametrizations.weight.original0.requires_grad = False

    def forward(self, x):
        return self.last_layer(F.normalize(self.head(self.net(x)), dim=-1))


class DINOLoss(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("center", torch.zeros(1, cfg.prototypes))

    def forward(self, student, teacher):
        student = [s / self.cfg.student_temp for s in student]
        teacher = [F.softmax((t - self.center) / self.cfg.teacher_temp, dim=-1).detach() for t in teacher]
        terms = [
            -(t * F.log_softmax(s, dim=-1)).sum(-1).mean()
            for i, t in enumerate(teacher) for j, s in enumerate(student) if i != j
        ]
        return sum(terms) / len(terms)

    @torch.no_grad()
    def update_center(self, teacher):
        self.center.mul_(0.9).add_(torch.cat(teacher).mean(0, keepdim=True), alpha=0.1)


def cancel_gradients_last_layer(model):
    for name, p in model.named_parameters():
        if "last_layer" in name:
            p.grad = None


def views(x, n):
    return [x * (torch.rand_like(x) > 0.2) + 0.2 * torch.randn_like(x) for _ in range(n)]


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = 2 * torch.randn(5, cfg.dim)
    student = Backbone(cfg)
    teacher = copy.deepcopy(student)
    for p in teacher.parameters():
        p.requires_grad = False
    criterion = DINOLoss(cfg)
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=cfg.lr)
    total, step = cfg.epochs * cfg.steps, 0
    for epoch in range(cfg.epochs):
        for _ in range(cfg.steps):
            for group in optimizer.param_groups:
                group["lr"] = cfg.lr * 0.5 * (1 + math.cos(math.pi * step / total))
            x = centres[torch.randint(5, (cfg.batch,))] + 0.5 * torch.randn(cfg.batch, cfg.dim)
            crops = views(x, 4)
            # The teacher normalises each crop by its own batch, as the student does.
            targets = [teacher(crop) for crop in crops[:2]]
            loss = criterion([student(crop) for crop in crops], targets)
            optimizer.zero_grad()
            loss.backward()
            if epoch < cfg.freeze_last_layer:
                cancel_gradients_last_layer(student)
            nn.utils.clip_grad_norm_(student.parameters(), 3.0)
            optimizer.step()
            criterion.update_center(targets)
            momentum = 1 - (1 - 0.98) * (math.cos(math.pi * step / total) + 1) / 2
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), student.parameters()):
                    slow.mul_(momentum).add_((1 - momentum) * fast.detach())
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")
    return loss.item()


if __name__ == "__main__":
    main()
