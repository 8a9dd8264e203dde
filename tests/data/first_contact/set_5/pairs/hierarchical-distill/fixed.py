"""Detector distillation with features of several levels, taken by hooks."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def stage(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.1))


class TinyDetector(nn.Module):
    def __init__(self, depth=1, classes=3):
        super().__init__()
        self.p1 = nn.Sequential(stage(1, 8, 2), *[stage(8, 8, 1) for _ in range(depth)])
        self.p2 = nn.Sequential(stage(8, 16, 2), *[stage(16, 16, 1) for _ in range(depth)])
        self.detect = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        return self.detect(self.p2(self.p1(x)))


class FeatureTap:
    def __init__(self, model, names):
        self.cache = {}
        for name in names:
            model.get_submodule(name).register_forward_hook(self._store(name))

    def _store(self, name):
        def hook(module, args, output):
            self.cache[name] = output
        return hook

    def clear(self):
        self.cache.clear()


class DistillTrainer:
    LEVELS = ("p1", "p2")

    def __init__(self, student, teacher, gain=2.0, lr=2e-3):
        self.student, self.teacher, self.gain = student, teacher.eval(), gain
        for p in self.teacher.parameters():
            p.requires_grad_(False)
        self.student_tap = FeatureTap(student, self.LEVELS)
        self.teacher_tap = FeatureTap(teacher, self.LEVELS)
        self.optimizer = torch.optim.Adam(student.parameters(), lr=lr)

    def hierarchical_loss(self, images):
        self.student_tap.clear()
        self.teacher_tap.clear()
        with torch.no_grad():
            self.teacher(images)
        self.student(images)
        total = images.new_zeros(())
        for i, level in enumerate(self.LEVELS):
            s = F.normalize(self.student_tap.cache.pop(level).flatten(2), dim=1)
            t = F.normalize(self.teacher_tap.cache.pop(level).flatten(2), dim=1)
            total = total + 0.5 ** i * (s - t).pow(2).sum(1).mean()
        return total / len(self.LEVELS)

    def step(self, images, targets):
        self.student.train()
        task = F.cross_entropy(self.student(images), targets)
        hier = self.hierarchical_loss(images)
        loss = task + self.gain * hier
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return task.item(), hier.item()


def scenes(n, seed):
    g = torch.Generator().manual_seed(seed)
    cells = torch.randint(0, 3, (n, 4, 4), generator=g)
    images = cells.float().repeat_interleave(4, 1).repeat_interleave(4, 2).unsqueeze(1)
    return images + 0.6 * torch.randn(n, 1, 16, 16, generator=g), cells


def fit_teacher(teacher, steps=30):
    optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    images, cells = scenes(96, 1)
    for _ in range(steps):
        pick = torch.randint(0, 96, (12,))
        optimizer.zero_grad()
        F.cross_entropy(teacher(images[pick]), cells[pick]).backward()
        optimizer.step()
    return teacher


def main(steps=25):
    torch.manual_seed(9)
    teacher = fit_teacher(TinyDetector(depth=2))
    trainer = DistillTrainer(TinyDetector(depth=1), teacher)
    images, cells = scenes(96, 2)
    history = []
    for step in range(steps):
        pick = torch.randint(0, 96, (12,))
        history.append(trainer.step(images[pick], cells[pick]))
        if step % 10 == 0:
            print(f"step {step:2d} task {history[-1][0]:.4f} hierarchical {history[-1][1]:.4f}")
    return trainer, history


if __name__ == "__main__":
    main()
