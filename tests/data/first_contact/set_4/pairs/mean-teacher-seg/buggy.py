"""Semi-supervised segmentation with a mean teacher; the teacher is what gets validated and saved."""
import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    size: int = 16
    labeled: int = 32
    unlabeled: int = 64
    batch: int = 8
    epochs: int = 16
    lr: float = 1e-2
    ema_decay: float = 0.9
    consistency: float = 1.0
    rampup: int = 6
    seed: int = 0


class ConvBNReLU(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class UNetTiny(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enc1 = ConvBNReLU(1, width)
        self.enc2 = ConvBNReLU(width, 2 * width)
        self.dec = ConvBNReLU(3 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = F.interpolate(self.enc2(F.max_pool2d(a, 2)), scale_factor=2)
        return self.out(self.dec(torch.cat([a, b], 1)))


def make_images(n, cfg, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(cfg.size), torch.arange(cfg.size), indexing="ij")
    centre = torch.randint(4, cfg.size - 4, (n, 2, 1, 1), generator=g)
    radius = torch.randint(3, 6, (n, 1, 1), generator=g)
    mask = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2 <= radius ** 2).long()
    image = 120 + 60 * mask.float() + 30 * torch.randn(n, cfg.size, cfg.size, generator=g)
    return image.unsqueeze(1), mask


def create_teacher(model):
    teacher = copy.deepcopy(model)
    for p in teacher.parameters():
        p.detach_()
    return teacher


def update_ema_variables(model, ema_model, alpha, global_step):
    alpha = min(1 - 1 / (global_step + 1), alpha)
    with torch.no_grad():
        for ema_param, param in zip(ema_model.parameters(), model.parameters()):
            ema_param.mul_(alpha).add_(param, alpha=1 - alpha)


def consistency_weight(cfg, epoch):
    phase = 1.0 - min(epoch, cfg.rampup) / cfg.rampup
    return cfg.consistency * math.exp(-5.0 * phase * phase)


@torch.no_grad()
def validate(model, images, masks):
    model.eval()
    pred = model(images).argmax(1)
    inter = ((pred == 1) & (masks == 1)).sum().item()
    union = ((pred == 1) | (masks == 1)).sum().item()
    model.train()
    return inter / max(union, 1)


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    x_lab, y_lab = make_images(cfg.labeled, cfg, 1)
    x_unl, _ = make_images(cfg.unlabeled, cfg, 2)
    x_val, y_val = make_images(48, cfg, 3)
    student = UNetTiny()
    teacher = create_teacher(student)
    teacher.eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    step, best, best_state = 0, 0.0, None
    for epoch in range(cfg.epochs):
        student.train()
        order = torch.randperm(cfg.unlabeled)
        for i in range(0, cfg.unlabeled, cfg.batch):
            lab = torch.randint(cfg.labeled, (cfg.batch,))
            unl = order[i: i + cfg.batch]
            noisy = torch.cat([x_lab[lab], x_unl[unl] + 10 * torch.randn(cfg.batch, 1, cfg.size, cfg.size)])
            logits = student(noisy)
            with torch.no_grad():
                target = F.softmax(teacher(x_unl[unl]), 1)
            supervised = F.cross_entropy(logits[: cfg.batch], y_lab[lab])
            consistency = F.mse_loss(F.softmax(logits[cfg.batch:], 1), target)
            loss = supervised + consistency_weight(cfg, epoch) * consistency
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            update_ema_variables(student, teacher, cfg.ema_decay, step)
        iou_student, iou_teacher = validate(student, x_val, y_val), validate(teacher, x_val, y_val)
        teacher.eval()
        if iou_teacher >= best:
            best, best_state = iou_teacher, copy.deepcopy(teacher.state_dict())
        if epoch % 4 == 3:
            print(f"epoch {epoch} loss {loss.item():.4f} student {iou_student:.3f} teacher {iou_teacher:.3f}")
    return {"student": student, "teacher": teacher, "iou_student": iou_student, "iou_teacher": iou_teacher}


if __name__ == "__main__":
    main()
