"""Knowledge distillation: a pretrained teacher with batch norm and dropout teaches a small student."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class KDConfig:
    classes: int = 5
    dim: int = 16
    teacher_steps: int = 200
    epochs: int = 6
    steps_per_epoch: int = 30
    batch_size: int = 32
    temperature: float = 3.0
    alpha: float = 0.8
    lr: float = 0.05
    seed: int = 12


class Net(nn.Module):
    def __init__(self, dim, width, classes, dropout=0.0):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(dim, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout),
                                      nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
        self.classifier = nn.Linear(width, classes)

    def forward(self, x):
        return self.classifier(self.features(x))


class Data:
    def __init__(self, cfg, gen):
        self.cfg, self.gen = cfg, gen
        self.centers = torch.randn(cfg.classes, cfg.dim, generator=gen)

    def batch(self, n, augment=False):
        y = torch.randint(0, self.cfg.classes, (n,), generator=self.gen)
        x = self.centers[y] + torch.randn(n, self.cfg.dim, generator=self.gen)
        if augment:
            x = 1.7 * x + 0.8
        return x, y


def train_teacher(cfg, data):
    teacher = Net(cfg.dim, 64, cfg.classes, dropout=0.3)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    teacher.train()
    for _ in range(cfg.teacher_steps):
        x, y = data.batch(cfg.batch_size)
        optimizer.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    return teacher


class Distiller(nn.Module):
    def __init__(self, student, teacher, cfg):
        super().__init__()
        self.student, self.teacher, self.cfg = student, teacher, cfg
        for p in self.teacher.parameters():
            p.requires_grad = False
        self.teacher.eval()

    def forward(self, x, y):
        with torch.no_grad():
            teacher_logits = self.teacher(x)
        student_logits = self.student(x)
        t = self.cfg.temperature
        soft = F.kl_div(F.log_softmax(student_logits / t, 1), F.softmax(teacher_logits / t, 1),
                        reduction="batchmean") * t * t
        hard = F.cross_entropy(student_logits, y)
        return self.cfg.alpha * soft + (1 - self.cfg.alpha) * hard


@torch.no_grad()
def accuracy(net, x, y):
    was_training = net.training
    net.eval()
    acc = (net(x).argmax(1) == y).float().mean().item()
    net.train(was_training)
    return acc


def distill(distiller, data, cfg, val):
    optimizer = torch.optim.SGD(distiller.student.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.epochs)
    for epoch in range(cfg.epochs):
        distiller.student.train()
        running = 0.0
        for _ in range(cfg.steps_per_epoch):
            x, y = data.batch(cfg.batch_size, augment=True)
            loss = distiller(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        scheduler.step()
        distiller.eval()
        if epoch % 2 == 0:
            print(f"epoch {epoch} loss {running / cfg.steps_per_epoch:.4f} "
                  f"student {accuracy(distiller.student, *val):.3f}")
    return running / cfg.steps_per_epoch


def main():
    cfg = KDConfig()
    torch.manual_seed(cfg.seed)
    data = Data(cfg, torch.Generator().manual_seed(cfg.seed))
    teacher = train_teacher(cfg, data)
    val = data.batch(400)
    before = copy.deepcopy(teacher.state_dict())
    acc_before = accuracy(teacher, *val)
    distiller = Distiller(Net(cfg.dim, 24, cfg.classes), teacher, cfg)
    loss = distill(distiller, data, cfg, val)
    drift = sum((v.float() - before[k].float()).norm().item() for k, v in teacher.state_dict().items()
                if "running" in k)
    result = {"loss": round(loss, 4), "teacher_acc": (round(acc_before, 3), round(accuracy(teacher, *val), 3)),
              "teacher_stats_drift": round(drift, 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
