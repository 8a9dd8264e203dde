import torch
import torch.nn as nn
import torch.nn.functional as F


class Conv(nn.Module):
    def __init__(self, c1, c2, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, 3, s, 1, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class DetectionModel(nn.Module):
    """Backbone with two output strides; each cell predicts class logits and an offset."""

    def __init__(self, width=8, nc=3):
        super().__init__()
        self.nc = nc
        self.stem = Conv(1, width)
        self.down1 = Conv(width, 2 * width, 2)
        self.down2 = Conv(2 * width, 2 * width, 2)
        self.heads = nn.ModuleList(nn.Conv2d(2 * width, nc + 1 + 2, 1) for _ in range(2))

    def forward(self, x):
        p1 = self.down1(self.stem(x))
        p2 = self.down2(p1)
        return [head(p) for head, p in zip(self.heads, (p1, p2))]


class DetectionLoss:
    def __init__(self, nc):
        self.nc = nc

    def __call__(self, preds, targets):
        loss = 0.0
        for pred, (cls, off) in zip(preds, targets):
            cls_loss = F.cross_entropy(pred[:, : self.nc + 1], cls)
            fg = (cls > 0).unsqueeze(1).float()
            off_loss = ((pred[:, self.nc + 1 :] - off).abs() * fg).sum() / fg.sum().clamp(min=1)
            loss = loss + cls_loss + 0.5 * off_loss
        return loss


def logit_distillation(student, teacher, nc, T=2.0):
    loss = 0.0
    for s, t in zip(student, teacher):
        s_log = F.log_softmax(s[:, : nc + 1] / T, 1)
        t_prob = F.softmax(t[:, : nc + 1] / T, 1)
        loss = loss + (t_prob * (t_prob.clamp(min=1e-8).log() - s_log)).sum(1).mean() * T * T
        loss = loss + F.smooth_l1_loss(s[:, nc + 1 :], t[:, nc + 1 :])
    return loss


def build_optimizer(*models, name="SGD", lr=0.02, momentum=0.9, decay=5e-4):
    g = [], [], []
    bn = nn.BatchNorm2d
    for model in models:
        for module in model.modules():
            for pname, param in module.named_parameters(recurse=False):
                if pname == "bias":
                    g[2].append(param)
                elif isinstance(module, bn):
                    g[1].append(param)
                else:
                    g[0].append(param)
    if name == "SGD":
        optimizer = torch.optim.SGD(g[2], lr=lr, momentum=momentum, nesterov=True)
    else:
        optimizer = torch.optim.AdamW(g[2], lr=lr, weight_decay=0.0)
    optimizer.add_param_group({"params": g[0], "weight_decay": decay})
    optimizer.add_param_group({"params": g[1], "weight_decay": 0.0})
    return optimizer


def synth_batch(n, generator, size=16, nc=3):
    cls_map = torch.zeros(n, size, size, dtype=torch.long)
    image = 0.3 * torch.randn(n, 1, size, size, generator=generator)
    for b in range(n):
        for _ in range(3):
            y, x = torch.randint(1, size - 1, (2,), generator=generator).tolist()
            c = int(torch.randint(1, nc + 1, (1,), generator=generator))
            cls_map[b, y, x] = c
            image[b, 0, y - 1 : y + 2, x - 1 : x + 2] += c
    targets = []
    for stride in (2, 4):
        cell = F.max_pool2d(cls_map.float().unsqueeze(1), stride).squeeze(1).long()
        grid = torch.arange(size // stride).float() / (size // stride) - 0.5
        off = torch.stack(torch.meshgrid(grid, grid, indexing="ij")).expand(n, -1, -1, -1)
        targets.append((cell, off))
    return image, targets


def fit_teacher(teacher, criterion, generator, steps=60):
    optimizer = build_optimizer(teacher, lr=0.05)
    teacher.train()
    for _ in range(steps):
        image, targets = synth_batch(16, generator)
        loss = criterion(teacher(image), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return teacher


class DistillationTrainer:
    def __init__(self, model, teacher, criterion, generator, alpha=1.0):
        self.model = model
        self.teacher = teacher
        self.criterion = criterion
        self.generator = generator
        self.alpha = alpha
        self.optimizer = build_optimizer(self.model)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)

    def preprocess(self):
        return synth_batch(16, self.generator)

    def train(self, epochs, nb=15):
        for epoch in range(epochs):
            self.model.train()
            self.teacher.eval()
            running = torch.zeros(2)
            for _ in range(nb):
                image, targets = self.preprocess()
                preds = self.model(image)
                with torch.no_grad():
                    t_preds = self.teacher(image)
                det = self.criterion(preds, targets)
                dis = logit_distillation(preds, t_preds, self.model.nc)
                loss = det + self.alpha * dis
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                running += torch.tensor([det.item(), dis.item()]) / nb
            self.scheduler.step()
            print(f"epoch {epoch}: det {running[0]:.4f} distill {running[1]:.4f}")


@torch.no_grad()
def evaluate(model, criterion, seed=99):
    model.eval()
    image, targets = synth_batch(64, torch.Generator().manual_seed(seed))
    return criterion(model(image), targets).item()


def main():
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(7)
    criterion = DetectionLoss(nc=3)
    teacher = fit_teacher(DetectionModel(width=16), criterion, gen)
    student = DetectionModel(width=6)
    print(f"teacher loss {evaluate(teacher, criterion):.4f}")
    DistillationTrainer(student, teacher, criterion, gen).train(epochs=4)
    print(f"student loss {evaluate(student, criterion):.4f} teacher loss {evaluate(teacher, criterion):.4f}")


if __name__ == "__main__":
    main()
