"""Second-stage domain adaptation: a small per-pixel classifier, a discriminator on its output maps."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

SOURCE, TARGET = 0.0, 1.0


def parse(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=40)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--classes", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--lr-d", type=float, default=1e-3)
    p.add_argument("--lambda-adv", type=float, default=0.5)
    return p.parse_args(argv or [])


def build_segmenter(classes):
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
        nn.Conv2d(12, classes, 1),
    )


def build_discriminator(classes):
    return nn.Sequential(
        nn.Conv2d(classes, 12, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(12, 1, 4, 2, 1),
    )


class Stream:
    """Source images carry labels, target images are shifted in colour and carry none."""

    def __init__(self, batch, classes, size=16, shift=0.0, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.batch, self.classes, self.size, self.shift = batch, classes, size, shift
        self.palette = torch.randn(classes, 3, generator=torch.Generator().manual_seed(99))

    def __iter__(self):
        return self

    def __next__(self):
        coarse = torch.randint(self.classes, (self.batch, 1, 4, 4), generator=self.g).float()
        label = F.interpolate(coarse, size=self.size).squeeze(1).long()
        image = self.palette[label].permute(0, 3, 1, 2)
        noise = torch.randn(image.shape, generator=self.g)
        return image * (1 - 0.3 * self.shift) + self.shift + 0.3 * noise, label


def domain_loss(logits, domain):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, domain))


def set_requires_grad(net, flag):
    for p in net.parameters():
        p.requires_grad_(flag)


def train(args):
    model = build_segmenter(args.classes)
    model_d = build_discriminator(args.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer_d = torch.optim.Adam(model_d.parameters(), lr=args.lr_d, betas=(0.9, 0.99))
    source = Stream(args.batch, args.classes, seed=1)
    target = Stream(args.batch, args.classes, shift=0.8, seed=2)
    log = []
    for it in range(args.iters):
        image_s, label_s = next(source)
        image_t, _ = next(target)

        optimizer.zero_grad()
        optimizer_d.zero_grad()
        set_requires_grad(model_d, False)

        pred_s = model(image_s)
        loss_seg = F.cross_entropy(pred_s, label_s)
        loss_seg.backward()
        optimizer.step()

        pred_t = model(image_t)
        loss_adv = domain_loss(model_d(pred_t.softmax(1)), SOURCE)
        loss_adv = loss_adv * args.lambda_adv
        loss_adv.backward()

        set_requires_grad(model_d, True)
        loss_d = 0.0
        for pred, domain in ((pred_s, SOURCE), (pred_t, TARGET)):
            part = domain_loss(model_d(pred.detach().softmax(1)), domain) / 2
            part.backward()
            loss_d += part.item()
        optimizer_d.step()

        log.append((loss_seg.item(), loss_adv.item(), loss_d))
    return model, log


def main():
    torch.manual_seed(0)
    args = parse()
    model, log = train(args)
    for i in range(0, len(log), 10):
        print("it %3d  seg %.3f  adv %.3f  d %.3f" % ((i,) + log[i]))
    return model, log


if __name__ == "__main__":
    main()
