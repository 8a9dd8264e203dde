import copy

import torch
import torch.nn.functional as F
from torch import nn


class SmallResNet(nn.Module):
    def __init__(self, num_classes=4, width=12):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 2 * width, 3, padding=1, stride=2, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * width)
        self.linear = nn.Linear(2 * width, num_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(x + self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        return self.linear(x.mean(dim=(2, 3)))


class Mask:
    def __init__(self, model, rate):
        self.model = model
        self.rate = rate
        self.mat = {}

    def conv_weights(self):
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Conv2d):
                yield name, module.weight

    @staticmethod
    def similar_filters(weight, count):
        flat = weight.detach().flatten(1)
        distance = torch.cdist(flat, flat).sum(dim=1)
        return distance.argsort()[:count]

    def init_mask(self):
        for name, weight in self.conv_weights():
            count = int(weight.shape[0] * self.rate)
            keep = torch.ones(weight.shape[0])
            keep[self.similar_filters(weight, count)] = 0
            self.mat[name] = keep.view(-1, 1, 1, 1)

    @torch.no_grad()
    def do_mask(self, optimizer):
        for name, weight in self.conv_weights():
            weight.mul_(self.mat[name])
            buffer = optimizer.state[weight].get("momentum_buffer")
            if buffer is not None:
                buffer.mul_(self.mat[name])

    def do_grad_mask(self):
        for name, weight in self.conv_weights():
            if weight.grad is not None:
                weight.grad.mul_(self.mat[name])

    def sparsity(self):
        zero, total = 0, 0
        for _, weight in self.conv_weights():
            zero += (weight.detach().flatten(1).abs().sum(1) == 0).sum().item()
            total += weight.shape[0]
        return zero / total


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def blobs(n, generator):
    y = torch.randint(0, 4, (n,), generator=generator)
    x = 0.5 * torch.randn(n, 3, 8, 8, generator=generator)
    for i, label in enumerate(y.tolist()):
        r, c = divmod(label, 2)
        x[i, label % 3, r * 4 : r * 4 + 4, c * 4 : c * 4 + 4] += 1.0
    return x, y


def train(images, labels, model, optimizer, mask=None, batch=32):
    losses = AverageMeter()
    model.train()
    for idx in torch.randperm(len(images)).split(batch):
        loss = F.cross_entropy(model(images[idx]), labels[idx])
        optimizer.zero_grad()
        loss.backward()
        if mask is not None:
            mask.do_grad_mask()
        optimizer.step()
        losses.update(loss.item(), len(idx))
    return losses.avg


@torch.no_grad()
def validate(images, labels, model):
    model.eval()
    return (model(images).argmax(1) == labels).float().mean().item()


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    train_x, train_y = blobs(256, gen)
    val_x, val_y = blobs(128, gen)
    model = SmallResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    best = {"acc": 0.0, "state": None}

    for epoch in range(3):
        loss = train(train_x, train_y, model, optimizer)
        print("dense", epoch, round(loss, 4), round(validate(val_x, val_y, model), 3))

    mask = Mask(model, rate=0.4)
    mask.init_mask()
    mask.do_mask(optimizer)
    print("sparsity", round(mask.sparsity(), 3), round(validate(val_x, val_y, model), 3))

    for epoch in range(4):
        loss = train(train_x, train_y, model, optimizer, mask)
        acc = validate(val_x, val_y, model)
        if acc >= best["acc"]:
            best = {"acc": acc, "state": copy.deepcopy(model.state_dict())}
        print("pruned", epoch, round(loss, 4), round(acc, 3))


if __name__ == "__main__":
    main()
