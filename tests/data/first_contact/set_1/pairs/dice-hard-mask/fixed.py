"""Binary segmentation of small lesions with a tiny U-Net and a BCE + Dice loss."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1 = conv(1, width)
        self.down2 = conv(width, width * 2)
        self.mid = conv(width * 2, width * 2)
        self.up1 = conv(width * 4, width)
        self.up2 = conv(width * 2, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(F.max_pool2d(d1, 2))
        m = self.mid(F.max_pool2d(d2, 2))
        u1 = self.up1(torch.cat([F.interpolate(m, scale_factor=2), d2], 1))
        u2 = self.up2(torch.cat([F.interpolate(u1, scale_factor=2), d1], 1))
        return self.out(u2)


def _threshold(x, threshold=None):
    if threshold is not None:
        return (x > threshold).type(x.dtype)
    return x


def f_score(pr, gt, eps=1.0, threshold=None):
    pr = _threshold(pr, threshold)
    dims = (1, 2, 3)
    tp = (gt * pr).sum(dims)
    fp = pr.sum(dims) - tp
    fn = gt.sum(dims) - tp
    return ((2 * tp + eps) / (2 * tp + fn + fp + eps)).mean()


class DiceLoss(nn.Module):
    def __init__(self, eps=1.0, threshold=None):
        super().__init__()
        self.eps = eps
        self.threshold = threshold

    def forward(self, logits, target):
        return 1 - f_score(torch.sigmoid(logits), target, self.eps, self.threshold)


class CombinedLoss(nn.Module):
    def __init__(self, bce_weight, dice_weight):
        super().__init__()
        self.bce = nn.BCEWithLogitsLoss()
        self.dice = DiceLoss()
        self.bce_weight, self.dice_weight = bce_weight, dice_weight

    def forward(self, logits, target):
        parts = {"bce": self.bce(logits, target), "dice": self.dice(logits, target)}
        return self.bce_weight * parts["bce"] + self.dice_weight * parts["dice"], parts


def make_lesions(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centres = torch.randint(4, size - 4, (n, 2), generator=g)
    radius = torch.randint(1, 4, (n,), generator=g)
    dist = (yy - centres[:, :1, None]) ** 2 + (xx - centres[:, 1:, None]) ** 2
    mask = (dist <= radius[:, None, None] ** 2).float().unsqueeze(1)
    image = 0.7 * mask + 0.6 * torch.randn(n, 1, size, size, generator=g)
    return image, mask


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        return f_score(torch.sigmoid(model(data[0])), data[1], threshold=0.5).item()


def train(args):
    torch.manual_seed(args.seed)
    model = UNet()
    criterion = CombinedLoss(args.bce_weight, args.dice_weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    images, masks = make_lesions(160, 16, 1)
    val = make_lesions(96, 16, 2)
    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        log = {"bce": 0.0, "dice": 0.0}
        for idx in torch.randperm(len(images)).split(args.batch_size):
            optimizer.zero_grad()
            loss, parts = criterion(model(images[idx]), masks[idx])
            loss.backward()
            optimizer.step()
            for name, value in parts.items():
                log[name] += value.item() * len(idx) / len(images)
        scheduler.step()
        score = evaluate(model, val)
        best = max(best, score)
        print(f"epoch {epoch} bce {log['bce']:.4f} dice loss {log['dice']:.4f} val dice {score:.4f}")
    return {"model": model, "criterion": criterion, "best": best, "val": val}


def main(argv=()):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--bce-weight", type=float, default=0.3)
    parser.add_argument("--dice-weight", type=float, default=1.0)
    return train(parser.parse_args(list(argv)))


if __name__ == "__main__":
    main()
