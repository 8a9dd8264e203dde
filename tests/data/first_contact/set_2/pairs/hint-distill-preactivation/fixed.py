"""Hint-based distillation: the student matches the teacher's pre-activations (OFD-style)."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class DistillConfig:
    classes: int = 4
    size: int = 8
    samples: int = 192
    batch: int = 32
    teacher_epochs: int = 6
    student_epochs: int = 10
    hint_weight: float = 1.0
    temperature: float = 3.0
    lr: float = 4e-3
    seed: int = 4


def conv_block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class ConvNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.block1 = conv_block(1, width)
        self.block2 = conv_block(width, 16)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(16 * 4, classes)

    def forward(self, x):
        x = self.block2(self.block1(x))
        return self.head(self.pool(x).flatten(1))


class FeatureTap:
    """Keeps the output of one layer during a forward pass."""

    def __init__(self, layer):
        self.value = None
        self.handle = layer.register_forward_hook(self._save)

    def _save(self, module, inputs, output):
        self.value = output.clone()

    def pop(self):
        value, self.value = self.value, None
        return value

    def close(self):
        self.handle.remove()


def make_images(cfg):
    labels = torch.randint(cfg.classes, (cfg.samples,))
    prototypes = torch.randn(cfg.classes, 1, cfg.size, cfg.size)
    images = prototypes[labels] + 0.8 * torch.randn(cfg.samples, 1, cfg.size, cfg.size)
    return images, labels


def batches(images, labels, size):
    for index in torch.randperm(len(images)).split(size):
        yield images[index], labels[index]


def train_teacher(cfg, images, labels):
    teacher = ConvNet(24, cfg.classes)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=cfg.lr)
    for _ in range(cfg.teacher_epochs):
        for x, y in batches(images, labels, cfg.batch):
            optimizer.zero_grad()
            F.cross_entropy(teacher(x), y).backward()
            optimizer.step()
    return teacher.eval().requires_grad_(False)


def distill(cfg, teacher, images, labels):
    student = ConvNet(6, cfg.classes)
    teacher_tap = FeatureTap(teacher.block2[1])
    student_tap = FeatureTap(student.block2[1])
    optimizer = torch.optim.Adam(student.parameters(), lr=cfg.lr)
    t = cfg.temperature
    for epoch in range(cfg.student_epochs):
        student.train()
        hint_total = 0.0
        for x, y in batches(images, labels, cfg.batch):
            with torch.no_grad():
                teacher_logits = teacher(x)
            logits = student(x)
            hint = F.mse_loss(student_tap.pop(), teacher_tap.pop())
            soft = F.kl_div((logits / t).log_softmax(-1), (teacher_logits / t).softmax(-1),
                            reduction="batchmean") * t * t
            loss = F.cross_entropy(logits, y) + soft + cfg.hint_weight * hint
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hint_total += hint.item()
        if epoch % 3 == 0:
            print(f"epoch {epoch:2d}  loss {loss.item():.4f}  hint {hint_total:.4f}")
    teacher_tap.close()
    student_tap.close()
    return student


@torch.no_grad()
def preactivation_gap(teacher, student, images):
    student.eval()
    first = student.block2[1](student.block2[0](student.block1(images)))
    second = teacher.block2[1](teacher.block2[0](teacher.block1(images)))
    return F.mse_loss(first, second).item()


def main(cfg=DistillConfig()):
    torch.manual_seed(cfg.seed)
    images, labels = make_images(cfg)
    teacher = train_teacher(cfg, images, labels)
    student = distill(cfg, teacher, images, labels)
    gap = preactivation_gap(teacher, student, images)
    print(f"pre-activation gap {gap:.4f}")
    return {"gap": gap}


if __name__ == "__main__":
    main()
