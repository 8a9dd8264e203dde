import copy
import io

import torch
import torch.nn.functional as F
from torch import nn

MODEL_ZOO = {}
BACKBONES = {}


def register_backbone(cls):
    BACKBONES[cls.__name__] = cls
    return cls


class BasicStage(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.InstanceNorm2d(cout, affine=True)
        )


@register_backbone
class LightBackbone(nn.Module):
    def __init__(self, pretrained=False, extra_pooling=True):
        super().__init__()
        self.body = nn.Sequential(BasicStage(3, 12), BasicStage(12, 24))
        self.pool = nn.AdaptiveAvgPool2d(2) if extra_pooling else nn.Identity()
        self.out_channels = 24 * 4
        if pretrained:
            MODEL_ZOO["light_backbone"].seek(0)
            self.load_state_dict(torch.load(MODEL_ZOO["light_backbone"], weights_only=True))

    def forward(self, x):
        return self.pool(self.body(x)).flatten(1)


class LUTGenerator(nn.Module):
    def __init__(self, n_points, n_feats, n_ranks):
        super().__init__()
        self.n_points = n_points
        self.weights_generator = nn.Linear(n_feats, n_ranks)
        self.basis_curves = nn.Linear(n_ranks, 3 * n_points, bias=False)

    def init_weights(self):
        nn.init.ones_(self.weights_generator.bias)
        identity = torch.linspace(0, 1, self.n_points).repeat(3)
        with torch.no_grad():
            self.basis_curves.weight.zero_()
            self.basis_curves.weight[:, 0] = identity

    def forward(self, feats):
        weights = self.weights_generator(feats)
        return weights, self.basis_curves(weights).view(-1, 3, self.n_points)


def apply_curves(img, curves):
    n = curves.shape[-1]
    pos = img.clamp(0, 1) * (n - 1)
    low = pos.detach().floor().clamp(max=n - 2).long()
    frac = pos - low
    flat = low.flatten(2)
    a = curves.gather(2, flat).view_as(img)
    b = curves.gather(2, flat + 1).view_as(img)
    return a + (b - a) * frac


class AiLUT(nn.Module):
    def __init__(self, backbone="LightBackbone", pretrained=True, n_points=9, n_ranks=3, sparse_factor=1e-4):
        super().__init__()
        self.sparse_factor = sparse_factor
        self.pretrained = pretrained
        self.backbone = BACKBONES[backbone](pretrained=pretrained)
        self.lut_generator = LUTGenerator(n_points, self.backbone.out_channels, n_ranks)
        self.init_weights()

    def init_weights(self):
        def special_initilization(m):
            if isinstance(m, nn.Conv2d):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)
            elif isinstance(m, nn.InstanceNorm2d):
                nn.init.ones_(m.weight)
                nn.init.zeros_(m.bias)
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=0.01)

        if not self.pretrained:
            self.backbone.apply(special_initilization)
        self.lut_generator.apply(special_initilization)
        self.lut_generator.init_weights()

    def forward(self, lq):
        weights, curves = self.lut_generator(self.backbone(lq))
        return apply_curves(lq, curves), weights

    def train_step(self, lq, gt):
        out, weights = self(lq)
        return F.mse_loss(out, gt) + self.sparse_factor * weights.pow(2).mean()


def photos(n, generator):
    exposure = torch.randint(0, 3, (n,), generator=generator)
    gt = torch.rand(n, 3, 4, 4, generator=generator)
    gt = F.interpolate(gt, size=16, mode="bilinear", align_corners=True)
    gamma = torch.tensor([0.5, 1.0, 2.2])[exposure][:, None, None, None]
    return gt.pow(gamma), gt, exposure


def pretrain_backbone(generator, steps):
    net = LightBackbone()
    head = nn.Linear(net.out_channels, 3)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(steps):
        lq, _, exposure = photos(32, generator)
        loss = F.cross_entropy(head(net(lq)), exposure)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    buffer = io.BytesIO()
    torch.save(copy.deepcopy(net.state_dict()), buffer)
    MODEL_ZOO["light_backbone"] = buffer
    return loss.item()


def main():
    torch.manual_seed(10)
    gen = torch.Generator().manual_seed(10)
    print("classification", round(pretrain_backbone(gen, 60), 3))
    model = AiLUT(pretrained=True)
    optimizer = torch.optim.Adam(
        [
            {"params": model.backbone.parameters(), "lr": 1e-4},
            {"params": model.lut_generator.parameters(), "lr": 4e-3},
        ]
    )
    val_lq, val_gt, _ = photos(48, gen)
    for it in range(1, 61):
        lq, gt, _ = photos(16, gen)
        loss = model.train_step(lq, gt)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it % 20 == 0:
            with torch.no_grad():
                psnr = -10 * torch.log10(F.mse_loss(model(val_lq)[0], val_gt))
            print(it, round(loss.item(), 5), round(psnr.item(), 2))


if __name__ == "__main__":
    main()
