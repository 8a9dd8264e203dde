"""Metric learning on a toy identity data set with an AdaCos / ArcFace style head."""
import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    metric: str = "arcface"
    num_classes: int = 12
    num_features: int = 8
    epochs: int = 12
    batch_size: int = 48
    lr: float = 0.05
    min_lr: float = 1e-3


class EmbeddingNet(nn.Module):
    def __init__(self, d_in, num_features):
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(d_in, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.block2 = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.fc = nn.Linear(32, num_features)
        self.bn = nn.BatchNorm1d(num_features)

    def forward(self, x):
        return self.bn(self.fc(self.block2(self.block1(x))))


class ArcFace(nn.Module):
    def __init__(self, num_features, num_classes, s=12.0, m=0.2):
        super().__init__()
        self.s, self.m = s, m
        self.W = nn.Parameter(torch.empty(num_classes, num_features))
        nn.init.xavier_uniform_(self.W)

    def forward(self, x, label=None):
        logits = F.linear(F.normalize(x), F.normalize(self.W))
        if label is None:
            return logits
        theta = torch.acos(logits.clamp(-1 + 1e-6, 1 - 1e-6))
        target = torch.cos((theta + self.m).clamp(max=math.pi))
        one_hot = F.one_hot(label, self.W.size(0)).to(x.dtype)
        return self.s * (one_hot * target + (1 - one_hot) * logits)


def identities(n, args, seed, d_in=16):
    proto = torch.randn(args.num_classes, d_in, generator=torch.Generator().manual_seed(5))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, args.num_classes, (n,), generator=g)
    return proto[y] + 0.9 * torch.randn(n, d_in, generator=g), y


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0.0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def train(args, data, model, metric_fc, criterion, optimizer):
    losses, acc = AverageMeter(), AverageMeter()
    model.train()
    metric_fc.train()
    x, y = data
    for idx in torch.randperm(len(x)).split(args.batch_size):
        feature = model(x[idx])
        output = metric_fc(feature, y[idx])
        loss = criterion(output, y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(idx))
        acc.update((output.argmax(1) == y[idx]).float().mean().item(), len(idx))
    return OrderedDict(loss=losses.avg, acc=acc.avg)


@torch.no_grad()
def validate(data, model, metric_fc):
    model.eval()
    metric_fc.eval()
    logits = metric_fc(model(data[0]))
    return OrderedDict(acc=(logits.argmax(1) == data[1]).float().mean().item(), cos=logits.max(1).values.mean().item())


def main():
    args = Args()
    torch.manual_seed(0)
    train_set, val_set = identities(576, args, 1), identities(300, args, 2)
    model = EmbeddingNet(16, args.num_features)
    metric_fc = ArcFace(args.num_features, args.num_classes)
    start = metric_fc.W.detach().clone()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD([*model.parameters(), *metric_fc.parameters()], lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs, eta_min=args.min_lr)
    log = []
    for epoch in range(args.epochs):
        tr = train(args, train_set, model, metric_fc, criterion, optimizer)
        va = validate(val_set, model, metric_fc)
        scheduler.step()
        log.append((epoch, tr["loss"], tr["acc"], va["acc"]))
        if epoch % 4 == 3:
            print("epoch %d loss %.4f acc %.4f val_acc %.4f" % log[-1])
    return {"loss": tr["loss"], "val_acc": va["acc"], "head_moved": (metric_fc.W.detach() - start).norm().item()}


if __name__ == "__main__":
    main()
