import torch
import torch.nn.functional as F
from torch import nn

LOSS_REGISTRY = {}


def register_loss(name):
    def wrap(cls):
        LOSS_REGISTRY[name] = cls
        return cls

    return wrap


def get_loss(cfg):
    cfg = dict(cfg)
    return LOSS_REGISTRY[cfg.pop("key")](**cfg)


class ConvNet(nn.Module):
    def __init__(self, width, depth, num_classes):
        super().__init__()
        layers, cin = [], 3
        for i in range(depth):
            cout = width * (1 + i // 2)
            layers += [nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()]
            cin = cout
        self.features = nn.Sequential(*layers)
        self.feat_dim = cin
        self.fc = nn.Linear(cin, num_classes)

    def forward(self, x):
        feat = self.features(x).mean(dim=(2, 3))
        return feat, self.fc(feat)


@register_loss("projected_feature")
class ProjectedFeatureLoss(nn.Module):
    def __init__(self, student_dim, teacher_dim, alpha=4.0):
        super().__init__()
        self.alpha = alpha
        self.embed = nn.Linear(student_dim, teacher_dim)
        self.bn_s = nn.BatchNorm1d(teacher_dim, eps=1e-4, affine=False)
        self.bn_t = nn.BatchNorm1d(teacher_dim, eps=1e-4, affine=False)

    def forward(self, feat_s, feat_t):
        f_s = self.bn_s(self.embed(feat_s))
        f_t = self.bn_t(feat_t)
        diff = (f_s - f_t).abs().pow(self.alpha).sum(dim=1)
        return torch.log(diff.mean() + 1e-6)


@register_loss("soft_target")
class SoftTargetLoss(nn.Module):
    def __init__(self, temperature=3.0):
        super().__init__()
        self.t = temperature

    def forward(self, logit_s, logit_t):
        p = F.log_softmax(logit_s / self.t, dim=1)
        q = F.softmax(logit_t / self.t, dim=1)
        return F.kl_div(p, q, reduction="batchmean") * self.t**2


def textures(n, num_classes, generator):
    y = torch.randint(0, num_classes, (n,), generator=generator)
    grid = torch.linspace(0, 6.28, 8)
    freq = (y.float() + 1)[:, None, None, None]
    base = torch.sin(freq * grid[None, None, None, :]) * torch.cos(0.5 * freq * grid[None, None, :, None])
    return base.expand(n, 3, 8, 8) + 0.4 * torch.randn(n, 3, 8, 8, generator=generator), y


def train_teacher(model, images, labels, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(epochs):
        for xb, yb in zip(images.split(64), labels.split(64)):
            optimizer.zero_grad()
            F.cross_entropy(model(xb)[1], yb).backward()
            optimizer.step()
    for p in model.parameters():
        p.requires_grad_(False)
    return model.eval()


class DistillationBox:
    def __init__(self, teacher, student, cfg):
        self.teacher = teacher
        self.student = student
        self.cfg = cfg
        self.feature_loss = get_loss(cfg["feature_loss"])
        self.logit_loss = get_loss(cfg["logit_loss"])
        self.optimizer = torch.optim.SGD(student.parameters(), lr=cfg["lr"], momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, cfg["epochs"])

    def forward_process(self, images, labels):
        with torch.no_grad():
            feat_t, logit_t = self.teacher(images)
        feat_s, logit_s = self.student(images)
        loss = F.cross_entropy(logit_s, labels)
        loss = loss + self.cfg["beta"] * self.logit_loss(logit_s, logit_t)
        return loss + self.cfg["gamma"] * self.feature_loss(feat_s, feat_t)

    def train_one_epoch(self, images, labels):
        self.student.train()
        total = 0.0
        order = torch.randperm(len(images))
        for idx in order.split(32):
            loss = self.forward_process(images[idx], labels[idx])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(idx)
        self.scheduler.step()
        return total / len(images)

    @torch.no_grad()
    def validate(self, images, labels):
        self.student.eval()
        return (self.student(images)[1].argmax(1) == labels).float().mean().item()


def main():
    torch.manual_seed(7)
    gen = torch.Generator().manual_seed(7)
    num_classes = 5
    images, labels = textures(192, num_classes, gen)
    val_images, val_labels = textures(128, num_classes, gen)
    teacher = train_teacher(ConvNet(16, 4, num_classes), images, labels, 5)
    student = ConvNet(6, 3, num_classes)
    cfg = {
        "feature_loss": {
            "key": "projected_feature",
            "student_dim": student.feat_dim,
            "teacher_dim": teacher.feat_dim,
        },
        "logit_loss": {"key": "soft_target", "temperature": 3.0},
        "beta": 0.5,
        "gamma": 0.3,
        "lr": 0.02,
        "epochs": 8,
    }
    box = DistillationBox(teacher, student, cfg)
    for epoch in range(cfg["epochs"]):
        loss = box.train_one_epoch(images, labels)
        if epoch % 2 == 1:
            print(epoch, round(loss, 4), round(box.validate(val_images, val_labels), 3))


if __name__ == "__main__":
    main()
