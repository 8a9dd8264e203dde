"""Keypoint head on a staged residual backbone whose early stages are kept fixed."""
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

cfg = SimpleNamespace(
    RESNETS=SimpleNamespace(FREEZE_AT=2, WIDTH=8),
    SOLVER=SimpleNamespace(BASE_LR=0.05, MOMENTUM=0.9, MAX_ITER=60, IMS_PER_BATCH=8),
    RNG_SEED=3,
)


class Bottleneck(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Conv2d(inplanes, planes, 1, stride, bias=False)

    def forward(self, x):
        residual = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + residual)


class ConvBody(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convX = 4
        self.res1 = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.res2 = Bottleneck(width, width)
        self.res3 = Bottleneck(width, 2 * width, stride=2)
        self.res4 = Bottleneck(2 * width, 2 * width)
        self._init_modules()

    def _init_modules(self):
        for i in range(1, cfg.RESNETS.FREEZE_AT + 1):
            for p in getattr(self, "res%d" % i).parameters():
                p.requires_grad = False

    def train(self, mode=True):
        self.training = mode

        for i in range(cfg.RESNETS.FREEZE_AT + 1, self.convX + 1):
            getattr(self, "res%d" % i).train(mode)
        return self

    def forward(self, x):
        for i in range(self.convX):
            x = getattr(self, "res%d" % (i + 1))(x)
        return x


class KeypointModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.Conv_Body = ConvBody(cfg.RESNETS.WIDTH)
        self.Head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * cfg.RESNETS.WIDTH, 3))

    def forward(self, x):
        return self.Head(self.Conv_Body(x))


def pretrained_statistics(model, images):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = None
            m.train()
    with torch.no_grad():
        for chunk in images.split(32):
            model(chunk)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 0.1


def scenes(n, generator):
    keypoint = torch.rand(n, 2, generator=generator) * 12 + 2
    grid = torch.arange(16.0)
    d = (grid[None, :, None] - keypoint[:, 0, None, None]) ** 2 + (grid[None, None] - keypoint[:, 1, None, None]) ** 2
    contrast = torch.rand(n, generator=generator) * 3 + 0.2
    image = torch.exp(-d / 6) * contrast[:, None, None] + 0.05 * torch.randn(n, 16, 16, generator=generator)
    return image.unsqueeze(1), torch.cat([keypoint / 16, contrast[:, None] / 3], dim=1)


def main():
    torch.manual_seed(cfg.RNG_SEED)
    generator = torch.Generator().manual_seed(9)
    model = KeypointModel()
    pretrained_statistics(model, scenes(256, generator)[0])
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=cfg.SOLVER.BASE_LR, momentum=cfg.SOLVER.MOMENTUM)
    model.train()
    for it in range(cfg.SOLVER.MAX_ITER):
        images, target = scenes(cfg.SOLVER.IMS_PER_BATCH, generator)
        loss = F.smooth_l1_loss(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"training loss {loss.item():.4f}")

    model.eval()
    images, target = scenes(64, generator)
    with torch.no_grad():
        errors = torch.cat([(model(im[None]) - t).norm(dim=1) for im, t in zip(images, target)])
    print(f"mean keypoint error {errors.mean().item():.4f}")
    return model, errors, images


if __name__ == "__main__":
    main()
