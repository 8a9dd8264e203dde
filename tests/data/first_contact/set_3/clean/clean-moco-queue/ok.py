"""MoCo: momentum encoder, queue of keys in a buffer, then a linear probe on frozen features."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    dim: int = 16
    out: int = 8
    queue: int = 128
    momentum: float = 0.95
    temperature: float = 0.2
    batch: int = 32
    steps: int = 100
    probe_steps: int = 60
    classes: int = 5
    seed: int = 2


def build_encoder(args):
    return nn.Sequential(nn.Linear(args.dim, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, args.out))


class MoCo(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.encoder_q = build_encoder(args)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for p in self.encoder_k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(args.out, args.queue), dim=0))
        self.register_buffer("ptr", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.args.momentum + q.data * (1.0 - self.args.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        i = int(self.ptr)
        self.queue[:, i : i + keys.shape[0]] = keys.T
        self.ptr.fill_((i + keys.shape[0]) % self.args.queue)

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self.momentum_update()
            order = torch.randperm(im_k.shape[0])
            k = F.normalize(self.encoder_k(im_k[order]), dim=1)[order.argsort()]
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.clone().detach()
        self.enqueue(k)
        return torch.cat([positive, negative], dim=1) / self.args.temperature


class Views:
    def __init__(self, args):
        self.args = args
        self.centers = 1.5 * torch.randn(args.classes, args.dim)

    def pair(self, n):
        y = torch.randint(0, self.args.classes, (n,))
        x = self.centers[y] + 0.8 * torch.randn(n, self.args.dim)
        return x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x), y


def pretrain(model, data, args):
    optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for step in range(args.steps):
        a, b, _ = data.pair(args.batch)
        logits = model(a, b)
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            print(f"step {step + 1} loss {loss.item():.3f}")


def linear_probe(model, data, args):
    backbone = build_encoder(args)
    state = {k[len("encoder_q.") :]: v for k, v in model.state_dict().items() if k.startswith("encoder_q.")}
    backbone.load_state_dict(state)
    backbone.requires_grad_(False).eval()
    head = nn.Linear(args.out, args.classes)
    optimizer = torch.optim.SGD([p for p in head.parameters() if p.requires_grad], lr=0.5)
    for _ in range(args.probe_steps):
        x, _, y = data.pair(args.batch)
        with torch.no_grad():
            features = backbone(x)
        loss = F.cross_entropy(head(features), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, _, y = data.pair(256)
    with torch.no_grad():
        return (head(backbone(x)).argmax(1) == y).float().mean().item()


def main():
    args = Args()
    torch.manual_seed(args.seed)
    data, model = Views(args), MoCo(args)
    pretrain(model, data, args)
    accuracy = linear_probe(model, data, args)
    print(f"probe accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
