from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

cfg = SimpleNamespace(
    backbone=SimpleNamespace(layers_lr=0.1, train_epoch=2),
    adjust=SimpleNamespace(enabled=True, channels=16),
    train=SimpleNamespace(base_lr=0.02, momentum=0.9, weight_decay=1e-4, epochs=4, steps=16),
)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2))
        self.layer2 = nn.Sequential(nn.Conv2d(12, 20, 3, padding=1), nn.ReLU())
        self.layer3 = nn.Sequential(nn.Conv2d(20, 20, 3, padding=1), nn.ReLU())
        self.layer4 = nn.Sequential(nn.Conv2d(20, 20, 3, padding=1), nn.ReLU())

    def forward(self, x):
        p2 = self.layer2(self.stem(x))
        p3 = self.layer3(p2)
        return [p2, p3, self.layer4(p3)]


class AdjustAllLayer(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.downsample = nn.ModuleList(nn.Conv2d(c, out_channels, 1) for c in in_channels)

    def forward(self, features):
        return [down(f) for down, f in zip(self.downsample, features)]


class TrackHead(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())
        self.cls = nn.Conv2d(channels, 1, 1)
        self.reg = nn.Conv2d(channels, 2, 1)

    def forward(self, x):
        x = self.tower(x)
        return self.cls(x).squeeze(1), self.reg(x).sigmoid()


def xcorr_depthwise(search, kernel):
    batch, channels = kernel.shape[:2]
    search = search.reshape(1, batch * channels, *search.shape[2:])
    weight = kernel.reshape(batch * channels, 1, *kernel.shape[2:])
    out = F.conv2d(search, weight, groups=batch * channels, padding="same")
    return out.reshape(batch, channels, *out.shape[2:])


class ModelBuilder(nn.Module):
    def __init__(self):
        super().__init__()
        channels = cfg.adjust.channels
        self.backbone = Backbone()
        self.neck = AdjustAllLayer([20, 20, 20], channels)
        self.car_head = TrackHead(channels)
        self.down = nn.ConvTranspose2d(channels * 3, channels, 1, 1)

    def features(self, image):
        return self.neck(self.backbone(image))

    def forward(self, template, search):
        kernels = [F.adaptive_avg_pool2d(f, 3) for f in self.features(template)]
        maps = [xcorr_depthwise(s, k) for s, k in zip(self.features(search), kernels)]
        return self.car_head(self.down(torch.cat(maps, dim=1)))


def set_backbone_stage(model, epoch):
    trainable = epoch >= cfg.backbone.train_epoch
    for layer in (model.backbone.layer3, model.backbone.layer4):
        for param in layer.parameters():
            param.requires_grad_(trainable)


def build_opt_lr(model):
    base_lr = cfg.train.base_lr
    groups = [{"params": model.backbone.parameters(), "lr": cfg.backbone.layers_lr * base_lr}]
    if cfg.adjust.enabled:
        groups.append({"params": model.neck.parameters(), "lr": base_lr})
    groups.append({"params": model.car_head.parameters(), "lr": base_lr})
    optimizer = torch.optim.SGD(
        groups, momentum=cfg.train.momentum, weight_decay=cfg.train.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    return optimizer, scheduler


def make_pairs(n, generator):
    pattern = torch.rand(n, 1, 6, 6, generator=generator) * 2
    template = 0.2 * torch.randn(n, 1, 12, 12, generator=generator)
    template[:, :, 3:9, 3:9] += pattern
    search = 0.2 * torch.randn(n, 1, 24, 24, generator=generator)
    heat, offset = torch.zeros(n, 12, 12), torch.zeros(n, 2)
    corner = torch.randint(0, 18, (n, 2), generator=generator)
    for i, (y, x) in enumerate(corner.tolist()):
        search[i, :, y : y + 6, x : x + 6] += pattern[i]
        heat[i, (y + 3) // 2, (x + 3) // 2] = 1.0
        offset[i] = torch.tensor([(y + 3) % 2 / 2, (x + 3) % 2 / 2])
    return template, search, heat, offset


def tracking_loss(cls, reg, heat, offset):
    log_prob = F.log_softmax(cls.flatten(1), dim=1)
    cls_loss = -(log_prob * heat.flatten(1)).sum(1).mean()
    at_target = (reg * heat.unsqueeze(1)).sum((2, 3))
    return cls_loss + F.smooth_l1_loss(at_target, offset)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(9)
    model = ModelBuilder()
    optimizer, scheduler = build_opt_lr(model)
    held_out = make_pairs(64, generator)
    for epoch in range(cfg.train.epochs):
        model.train()
        set_backbone_stage(model, epoch)
        for _ in range(cfg.train.steps):
            template, search, heat, offset = make_pairs(16, generator)
            loss = tracking_loss(*model(template, search), heat, offset)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            value = tracking_loss(*model(*held_out[:2]), *held_out[2:]).item()
        print(f"epoch {epoch} train {loss.item():.4f} held out {value:.4f}")


if __name__ == "__main__":
    main()
