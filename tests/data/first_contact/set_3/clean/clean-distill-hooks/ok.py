"""Feature distillation with hooks, gradient accumulation with a short last group, and a frozen stem."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 12
    classes: int = 4
    micro_batch: int = 16
    batches: int = 10
    accumulate: int = 4
    epochs: int = 5
    warmup: int = 3
    lr: float = 0.05
    temperature: float = 2.0


class Net(nn.Module):
    freeze_stem = False

    def __init__(self, cfg, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(cfg.dim, width), nn.BatchNorm1d(width), nn.ReLU())
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, cfg.classes)

    def train(self, mode=True):
        super().train(mode)
        if self.freeze_stem:
            self.stem.eval()
        return self

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


class Tap:
    def __init__(self, module, detach):
        self.detach = detach
        self.handle, self.value = module.register_forward_hook(self), None

    def __call__(self, module, args, output):
        self.value = output.detach() if self.detach else output

    def take(self):
        value, self.value = self.value, None
        return value


class Distiller:
    def __init__(self, cfg):
        torch.manual_seed(7)
        self.cfg = cfg
        self.centers = 1.5 * torch.randn(cfg.classes, cfg.dim)
        self.teacher, self.student = Net(cfg, 32), Net(cfg, 8)
        self.adapter = nn.Linear(8, 32, bias=False)

    def batch(self):
        y = torch.randint(0, self.cfg.classes, (self.cfg.micro_batch,))
        return self.centers[y] + torch.randn(self.cfg.micro_batch, self.cfg.dim), y

    def fit_plain(self, net, steps):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in (self.batch() for _ in range(steps)):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

    def loss(self, x, y, t_tap, s_tap):
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.cfg.temperature, -1)
        logits = self.student(x)
        kd = F.kl_div(F.log_softmax(logits / self.cfg.temperature, -1), soft, reduction="batchmean") * self.cfg.temperature**2
        feature = F.mse_loss(self.adapter(s_tap.take()), t_tap.take())
        return 0.5 * F.cross_entropy(logits, y) + 0.5 * kd + feature

    def distill(self):
        self.teacher.requires_grad_(False).eval()
        self.student.freeze_stem = True
        self.student.stem.requires_grad_(False)
        self.student.train()
        params = [p for m in (self.student, self.adapter) for p in m.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(params, lr=self.cfg.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, s / self.cfg.warmup))
        t_tap, s_tap = Tap(self.teacher.body, detach=True), Tap(self.student.body, detach=False)
        for epoch in range(self.cfg.epochs):
            optimizer.zero_grad()
            total = 0.0
            for i in range(self.cfg.batches):
                group = min(self.cfg.accumulate, self.cfg.batches - i // self.cfg.accumulate * self.cfg.accumulate)
                loss = self.loss(*self.batch(), t_tap, s_tap)
                (loss / group).backward()
                total += loss.item()
                if (i + 1) % self.cfg.accumulate == 0 or i + 1 == self.cfg.batches:
                    nn.utils.clip_grad_norm_(params, 5.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
            print(f"epoch {epoch} loss {total / self.cfg.batches:.3f}")
        t_tap.handle.remove()
        s_tap.handle.remove()


def main():
    d = Distiller(Config())
    d.fit_plain(d.teacher, 60)
    d.fit_plain(d.student, 10)
    d.distill()
    d.student.eval()
    with torch.no_grad():
        x, y = zip(*(d.batch() for _ in range(10)))
        return (d.student(torch.cat(x)).argmax(-1) == torch.cat(y)).float().mean().item()


if __name__ == "__main__":
    main()
