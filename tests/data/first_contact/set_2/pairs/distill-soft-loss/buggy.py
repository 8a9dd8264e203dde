"""Knowledge distillation of a wide network into a narrow one."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Configs:
    features: int = 20
    classes: int = 10
    batch_size: int = 100
    teacher_epochs: int = 6
    epochs: int = 8
    train_size: int = 1200
    temperature: float = 4.0
    soft_weight: float = 0.9
    lr: float = 5e-3
    seed: int = 11


def mlp(cfg, width, dropout):
    return nn.Sequential(
        nn.Linear(cfg.features, width), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(width, cfg.classes),
    )


class Data:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rule = nn.Sequential(
            nn.Linear(cfg.features, 32), nn.Tanh(), nn.Linear(32, cfg.classes)
        ).requires_grad_(False)
        self.rule[2].weight.mul_(6.0)
        self.x, self.y = self.make(cfg.train_size)
        self.vx, self.vy = self.make(800)

    def make(self, n):
        x = torch.randn(n, self.cfg.features)
        y = self.rule(x).argmax(dim=1)
        flip = torch.rand(n) < 0.1
        return x, torch.where(flip, torch.randint(self.cfg.classes, (n,)), y)

    def loader(self):
        order = torch.randperm(len(self.x))
        for start in range(0, len(order), self.cfg.batch_size):
            index = order[start:start + self.cfg.batch_size]
            yield self.x[index], self.y[index]


class DistillationTrainer:
    def __init__(self, cfg, teacher, student, data):
        self.cfg, self.data = cfg, data
        self.large = teacher.eval()
        self.model = student
        self.optimizer = torch.optim.Adam(student.parameters(), lr=cfg.lr)

    def step(self, data, target):
        self.model.train()
        with torch.no_grad():
            large_logits = self.large(data)
        output = self.model(data)

        temperature = self.cfg.temperature
        soft_targets = F.softmax(large_logits / temperature, dim=-1)
        soft_log_prob = F.log_softmax(large_logits / temperature, dim=-1)
        soft_loss = -(soft_targets * soft_log_prob).sum(dim=-1).mean()
        label_loss = F.cross_entropy(output, target)
        weight = self.cfg.soft_weight
        loss = weight * temperature ** 2 * soft_loss + (1.0 - weight) * label_loss

        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        logits = self.model(self.data.vx)
        reference = self.large(self.data.vx)
        accuracy = (logits.argmax(1) == self.data.vy).float().mean().item()
        kl = F.kl_div(
            F.log_softmax(logits, 1), F.log_softmax(reference, 1), log_target=True, reduction="batchmean"
        ).item()
        return accuracy, kl

    def run(self):
        for epoch in range(self.cfg.epochs):
            losses = [self.step(x, y) for x, y in self.data.loader()]
            accuracy, _ = self.validate()
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} accuracy {accuracy:.3f}")


def train_teacher(cfg, data):
    teacher = mlp(cfg, 128, 0.2)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(cfg.teacher_epochs):
        for x, y in data.loader():
            optimizer.zero_grad()
            F.cross_entropy(teacher(x), y).backward()
            optimizer.step()
    return teacher


def main():
    cfg = Configs()
    torch.manual_seed(cfg.seed)
    data = Data(cfg)
    trainer = DistillationTrainer(cfg, train_teacher(cfg, data), mlp(cfg, 16, 0.0), data)
    trainer.run()
    accuracy, kl = trainer.validate()
    return {"accuracy": accuracy, "kl_to_teacher": kl}


if __name__ == "__main__":
    main()
