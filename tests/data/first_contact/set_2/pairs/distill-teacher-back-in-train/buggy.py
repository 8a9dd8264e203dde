"""Knowledge distillation: the teacher travels inside the model wrapper that the trainer sees."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class DistillConfig:
    temperature: float = 3.0
    hardness: float = 0.2
    teacher_epochs: int = 4
    epochs: int = 6
    batch_size: int = 16
    lr: float = 2e-3
    seed: int = 21


def make_data(n, seed, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    y = torch.randint(5, (n,), generator=g)
    return TensorDataset(centres[y] * (1 + shift) + shift + torch.randn(n, 20, generator=g), y)


def mlp(width, dropout):
    return nn.Sequential(nn.Linear(20, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout),
                         nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 5))


class KDModelWrapper(nn.Module):
    def __init__(self, student, teacher, cfg):
        super().__init__()
        self.student = student
        self.teacher = teacher.eval().requires_grad_(False)
        self.temperature = cfg.temperature
        self.hardness = cfg.hardness

    def forward(self, x, labels=None):
        logits = self.student(x)
        if labels is None:
            return logits
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.temperature, dim=-1)
        task = F.cross_entropy(logits, labels)
        kd = F.kl_div(F.log_softmax(logits / self.temperature, dim=-1), soft, reduction="batchmean")
        return self.hardness * task + (1 - self.hardness) * self.temperature ** 2 * kd


class Trainer:
    def __init__(self, model, cfg, loss_fn):
        self.model, self.cfg, self.loss_fn = model, cfg, loss_fn
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=cfg.lr)

    def fit(self, dataset, epochs):
        loader = DataLoader(dataset, self.cfg.batch_size, shuffle=True, drop_last=True,
                            generator=torch.Generator().manual_seed(self.cfg.seed))
        for epoch in range(epochs):
            self.model.train()
            total = 0.0
            for x, y in loader:
                self.optimizer.zero_grad(set_to_none=True)
                loss = self.loss_fn(self.model, x, y)
                loss.backward()
                self.optimizer.step()
                total += loss.item()
            print(f"epoch {epoch} loss {total / len(loader):.4f}")

    @torch.no_grad()
    def accuracy(self, net, dataset):
        net.eval()
        x, y = dataset.tensors
        return (net(x).argmax(-1) == y).float().mean().item()


def main():
    cfg = DistillConfig()
    torch.manual_seed(cfg.seed)
    source, target, test = make_data(800, 1), make_data(200, 2, shift=0.4), make_data(400, 3)
    teacher = mlp(64, 0.5)
    teacher_trainer = Trainer(teacher, cfg, lambda m, x, y: F.cross_entropy(m(x), y))
    teacher_trainer.fit(source, cfg.teacher_epochs)
    before = teacher_trainer.accuracy(teacher, test)

    wrapper = KDModelWrapper(mlp(16, 0.0), teacher, cfg)
    trainer = Trainer(wrapper, cfg, lambda m, x, y: m(x, y))
    trainer.fit(target, cfg.epochs)
    after = trainer.accuracy(wrapper.teacher, test)
    student = trainer.accuracy(wrapper.student, test)
    print(f"teacher {before:.3f} -> {after:.3f} student {student:.3f}")
    return {"teacher_before": before, "teacher_after": after, "student": student, "wrapper": wrapper}


if __name__ == "__main__":
    main()
