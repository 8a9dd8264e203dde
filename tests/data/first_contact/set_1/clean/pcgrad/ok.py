"""Two-task network (segmentation and depth) with projected conflicting gradients on the shared trunk."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    seed: int = 8
    epochs: int = 5
    batch_size: int = 16
    lr: float = 4e-3


class MultiTaskNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()
        )
        self.seg = nn.Conv2d(width, 2, 1)
        self.depth = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.seg(h), self.depth(h)


class PCGrad:
    """Yu et al. 2020: remove from each task's gradient its part against the other tasks' gradients."""

    def __init__(self, optimizer, shared):
        self.optimizer, self.shared = optimizer, list(shared)
        self.conflicts = 0

    def _task_gradients(self, losses, heads):
        vectors = []
        for i, loss in enumerate(losses):
            last = i == len(losses) - 1
            grads = torch.autograd.grad(loss, self.shared + heads[i], retain_graph=not last)
            vectors.append(torch.cat([g.flatten() for g in grads[: len(self.shared)]]))
            for p, g in zip(heads[i], grads[len(self.shared):]):
                p.grad = g
        return vectors

    def backward(self, losses, heads):
        vectors = self._task_gradients(losses, heads)
        projected = []
        for i, own in enumerate(vectors):
            g = own.clone()
            for j, other in enumerate(vectors):
                dot = torch.dot(g, other)
                if i != j and dot < 0:
                    self.conflicts += 1
                    g -= dot / other.square().sum() * other
            projected.append(g)
        merged, offset = torch.stack(projected).sum(0), 0
        for p in self.shared:
            p.grad = merged[offset:offset + p.numel()].view_as(p).clone()
            offset += p.numel()

    def step(self):
        self.optimizer.step()


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 1, 3, 3, generator=g)
    depth = F.interpolate(coarse, size=(12, 12), mode="bilinear", align_corners=True)
    seg = (depth.squeeze(1) > 0.3).long()
    return depth * 0.7 + 0.4 * torch.randn(depth.shape, generator=g), seg, depth.abs()


def task_losses(outputs, seg, depth):
    return [F.cross_entropy(outputs[0], seg), F.l1_loss(outputs[1], depth)]


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    model = MultiTaskNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    pcgrad = PCGrad(optimizer, model.trunk.parameters())
    heads = [list(model.seg.parameters()), list(model.depth.parameters())]
    train, val = make_data(128, 1), make_data(64, 2)
    for epoch in range(cfg.epochs):
        model.train()
        for idx in torch.randperm(128).split(cfg.batch_size):
            x, seg, depth = (t[idx] for t in train)
            losses = task_losses(model(x), seg, depth)
            pcgrad.backward(losses, heads)
            pcgrad.step()
        model.eval()
        with torch.no_grad():
            seg_val, depth_val = task_losses(model(val[0]), val[1], val[2])
        print(f"epoch {epoch} seg {seg_val.item():.4f} depth {depth_val.item():.4f} conflicts {pcgrad.conflicts}")
    return (seg_val + depth_val).item()


if __name__ == "__main__":
    main()
