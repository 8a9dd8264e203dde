"""Self-distillation without labels: student, momentum teacher, centered targets."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ProjectionHead(nn.Module):
    def __init__(self, in_dim, out_dim, bottleneck=16):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(in_dim, 48), nn.GELU(), nn.Linear(48, bottleneck))
        self.last = nn.utils.parametrizations.weight_norm(
            nn.Linear(bottleneck, out_dim, bias=False))
        self.last.parametrizations.weight.original0.data.fill_(1)
        self.last.parametrizations.weight.original0.requires_grad = False

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x), dim=-1))


class Network(nn.Module):
    def __init__(self, dim=20, out_dim=32):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(dim, 64), nn.BatchNorm1d(64), nn.GELU(),
                                      nn.Linear(64, 32), nn.GELU())
        self.head = ProjectionHead(32, out_dim)

    def forward(self, views):
        return self.head(self.backbone(torch.cat(views))).chunk(len(views))


class DistillLoss(nn.Module):
    def __init__(self, out_dim, student_temp=0.1, teacher_temp=0.05, momentum=0.9):
        super().__init__()
        self.student_temp, self.teacher_temp = student_temp, teacher_temp
        self.momentum = momentum
        self.register_buffer("center", torch.zeros(1, out_dim))

    def forward(self, student_out, teacher_out):
        targets = [F.softmax((t - self.center) / self.teacher_temp, dim=-1).detach()
                   for t in teacher_out]
        loss, terms = 0.0, 0
        for i, target in enumerate(targets):
            for j, s in enumerate(student_out):
                if i == j:
                    continue
                logp = F.log_softmax(s / self.student_temp, dim=-1)
                loss = loss - (target * logp).sum(-1).mean()
                terms += 1
        self.update_center(teacher_out)
        return loss / terms

    @torch.no_grad()
    def update_center(self, teacher_out):
        batch_center = torch.cat(teacher_out).mean(dim=0, keepdim=True)
        self.center = self.center * self.momentum + batch_center * (1 - self.momentum)


@torch.no_grad()
def update_teacher(student, teacher, m):
    for s, t in zip(student.parameters(), teacher.parameters()):
        t.data.mul_(m).add_(s.detach().data, alpha=1 - m)


def cosine(base, final, steps):
    return [final + 0.5 * (base - final) * (1 + math.cos(math.pi * i / steps))
            for i in range(steps)]


def cancel_gradients_last_layer(step, model, freeze_steps):
    if step >= freeze_steps:
        return
    for name, p in model.named_parameters():
        if "head.last" in name:
            p.grad = None


def augment(x, g):
    mask = (torch.rand(x.shape, generator=g) > 0.2).float()
    return x * mask + 0.2 * torch.randn(x.shape, generator=g)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    centers = 2 * torch.randn(8, 20, generator=g)
    student = Network()
    teacher = copy.deepcopy(student)
    for p in teacher.parameters():
        p.requires_grad = False
    loss_fn = DistillLoss(32)
    params = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=0.0)
    steps, freeze = 150, 20
    lrs, momenta = cosine(3e-3, 1e-5, steps), cosine(0.95, 1.0, steps)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lrs[step]
        x = centers[torch.randint(0, 8, (64,), generator=g)]
        x = x + torch.randn(x.shape, generator=g)
        views = [augment(x, g), augment(x, g)]
        teacher_out = teacher(views)
        loss = loss_fn(student(views), teacher_out)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        cancel_gradients_last_layer(step, student, freeze)
        optimizer.step()
        update_teacher(student, teacher, momenta[step])
        if step % 30 == 0:
            spread = torch.cat(teacher_out).std(dim=0).mean().item()
            print(f"step {step:3d}  loss {loss.item():.4f}  teacher spread {spread:.4f}")
    return student, teacher


if __name__ == "__main__":
    main()
