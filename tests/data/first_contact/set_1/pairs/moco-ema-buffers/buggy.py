"""Contrastive pre-training whose momentum encoder is used for the k-NN evaluation."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Options:
    dim: int = 12
    feat: int = 16
    temperature: float = 0.2
    momentum: float = 0.9
    epochs: int = 10
    batch: int = 64
    lr: float = 3e-3


class Encoder(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(opt.dim, 48), nn.BatchNorm1d(48), nn.ReLU(inplace=True),
            nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(inplace=True))
        self.projector = nn.Linear(48, opt.feat)

    def forward(self, x):
        return F.normalize(self.projector(self.backbone(x)), dim=1)


class MomentumEncoder:
    def __init__(self, online, momentum):
        self.net = copy.deepcopy(online).eval()
        for p in self.net.parameters():
            p.requires_grad_(False)
        self.m = momentum

    @torch.no_grad()
    def update(self, online):
        for pq, pk in zip(online.parameters(), self.net.parameters()):
            pk.data = pk.data * self.m + pq.data * (1.0 - self.m)

    @torch.no_grad()
    def __call__(self, x):
        return self.net(x)


class Blobs:
    def __init__(self, opt, n, seed, classes=6):
        g = torch.Generator().manual_seed(11)
        self.centres = 4.0 + 0.8 * torch.randn(classes, opt.dim, generator=g)
        self.scale = 0.2 + 6.0 * torch.rand(opt.dim, generator=g) ** 2
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, classes, (n,), generator=g)
        self.x = (self.centres[self.y] + 0.9 * torch.randn(n, opt.dim, generator=g)) * self.scale

    def two_views(self, idx):
        x = self.x[idx]
        return tuple(x + 0.35 * self.scale * torch.randn_like(x) for _ in range(2))


def nt_xent(z1, z2, temperature):
    z = torch.cat([z1, z2])
    sim = z @ z.t() / temperature
    sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    n = len(z1)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


def knn_accuracy(encode, train, test, k=5):
    ftr, fte = encode(train.x), encode(test.x)
    nearest = (fte @ ftr.t()).topk(k, dim=1).indices
    return (train.y[nearest].mode(dim=1).values == test.y).float().mean().item()


class Pretrainer:
    def __init__(self, opt):
        self.opt = opt
        self.online = Encoder(opt)
        self.momentum = MomentumEncoder(self.online, opt.momentum)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=opt.lr, weight_decay=1e-6)
        self.train_data, self.test_data = Blobs(opt, 512, 1), Blobs(opt, 256, 2)

    def epoch(self):
        self.online.train()
        total = 0.0
        for idx in torch.randperm(len(self.train_data.x)).split(self.opt.batch):
            v1, v2 = self.train_data.two_views(idx)
            loss = nt_xent(self.online(v1), self.online(v2), self.opt.temperature)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.momentum.update(self.online)
            total += loss.item() * len(idx)
        return total / len(self.train_data.x)

    def evaluate(self):
        self.online.eval()
        with torch.no_grad():
            online = knn_accuracy(self.online, self.train_data, self.test_data)
        return online, knn_accuracy(self.momentum, self.train_data, self.test_data)


def main():
    torch.manual_seed(0)
    trainer = Pretrainer(Options())
    for e in range(trainer.opt.epochs):
        loss = trainer.epoch()
        online, ema = trainer.evaluate()
        if e % 3 == 0:
            print(f"epoch {e}: loss {loss:.4f} knn online {online:.3f} momentum {ema:.3f}")
    with torch.no_grad():
        gap = (trainer.online(trainer.test_data.x) - trainer.momentum(trainer.test_data.x)).norm(dim=1).mean().item()
    return {"loss": loss, "knn_online": online, "knn_momentum": ema, "feature_gap": gap}


if __name__ == "__main__":
    main()
