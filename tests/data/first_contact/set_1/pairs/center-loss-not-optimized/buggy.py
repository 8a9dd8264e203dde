"""Metric-learning classifier: softmax loss plus center loss on the embedding."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class CenterLoss(nn.Module):
    """Wen et al., A Discriminative Feature Learning Approach for Deep Face Recognition."""

    def __init__(self, num_classes, feat_dim):
        super().__init__()
        self.num_classes = num_classes
        self.feat_dim = feat_dim
        self.centers = nn.Parameter(torch.randn(num_classes, feat_dim) * 3)

    def forward(self, x, labels):
        distmat = torch.cdist(x, self.centers).pow(2)
        mask = F.one_hot(labels, self.num_classes).to(x.dtype)
        return (distmat * mask).clamp(min=1e-12, max=1e12).sum() / x.size(0)


class EmbeddingNet(nn.Module):
    def __init__(self, num_classes, feat_dim):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(30, 64), nn.BatchNorm1d(64), nn.PReLU(), nn.Linear(64, 32), nn.PReLU()
        )
        self.fc1 = nn.Linear(32, feat_dim)
        self.fc2 = nn.Linear(feat_dim, num_classes)

    def forward(self, x):
        features = self.fc1(self.trunk(x))
        return features, self.fc2(features)


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.sum = self.count = self.avg = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def get_loaders(args):
    means = torch.randn(args.num_classes, 30, generator=torch.Generator().manual_seed(0))

    def build(n, seed, shuffle):
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(args.num_classes, (n,), generator=g)
        x = means[y] + 1.1 * torch.randn(n, 30, generator=g)
        return DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=shuffle)

    return build(480, 1, True), build(240, 2, False)


def train(args, model, criterion_xent, criterion_cent, optimizer, loader, meters):
    model.train()
    for meter in meters.values():
        meter.reset()
    for data, labels in loader:
        features, outputs = model(data)
        loss_xent = criterion_xent(outputs, labels)
        loss_cent = criterion_cent(features, labels) * args.weight_cent
        loss = loss_xent + loss_cent
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters["xent"].update(loss_xent.item(), len(labels))
        meters["cent"].update(loss_cent.item(), len(labels))


@torch.no_grad()
def test(model, loader):
    model.eval()
    correct = total = 0
    for data, labels in loader:
        _, outputs = model(data)
        correct += (outputs.argmax(1) == labels).sum().item()
        total += len(labels)
    return correct / total


def main(argv=()):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--num-classes", type=int, default=6)
    parser.add_argument("--feat-dim", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr-model", type=float, default=0.02)
    parser.add_argument("--weight-cent", type=float, default=0.05)
    parser.add_argument("--max-epoch", type=int, default=12)
    args = parser.parse_args(list(argv))

    torch.manual_seed(args.seed)
    trainloader, testloader = get_loaders(args)
    model = EmbeddingNet(args.num_classes, args.feat_dim)
    criterion_xent = nn.CrossEntropyLoss()
    criterion_cent = CenterLoss(args.num_classes, args.feat_dim)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr_model, weight_decay=5e-4, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    meters = {"xent": AverageMeter(), "cent": AverageMeter()}
    for epoch in range(args.max_epoch):
        train(args, model, criterion_xent, criterion_cent, optimizer, trainloader, meters)
        scheduler.step()
        if epoch % 4 == 3:
            print(f"epoch {epoch + 1} xent {meters['xent'].avg:.4f} cent {meters['cent'].avg:.4f} acc {test(model, testloader):.3f}")
    return {"xent": meters["xent"].avg, "cent": meters["cent"].avg, "acc": test(model, testloader), "criterion": criterion_cent}


if __name__ == "__main__":
    main()
