"""Multi-task training in which the gradients of the tasks are made not to conflict before they are added."""
import random

import torch
import torch.nn as nn


class MultiTaskNet(nn.Module):
    def __init__(self, dim=12, hidden=24, tasks=3):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(dim, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU())
        self.heads = nn.ModuleList(nn.Linear(hidden, 1) for _ in range(tasks))

    def forward(self, x):
        z = self.shared(x)
        return [head(z).squeeze(-1) for head in self.heads]


class ProjectedGradients:
    """Wraps an optimizer: `backward(losses)` leaves the combined gradient in .grad, `step()` uses it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.params = [p for group in optimizer.param_groups for p in group["params"]]

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)

    def step(self):
        self.optimizer.step()

    def _flat(self):
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        return torch.cat([piece.flatten() for piece in pieces])

    def backward(self, losses):
        vectors = []
        for i, loss in enumerate(losses):
            self.zero_grad()
            loss.backward(retain_graph=i + 1 < len(losses))
            vectors.append(self._flat().clone())
        combined = self._project(vectors)
        self._write(combined)

    @staticmethod
    def _project(vectors):
        result = []
        for vector in vectors:
            own = vector.clone()
            others = list(vectors)
            random.shuffle(others)
            for other in others:
                dot = torch.dot(own, other)
                if dot < 0:
                    own -= dot / other.square().sum().clamp(min=1e-12) * other
            result.append(own)
        return torch.stack(result).sum(0)

    def _write(self, flat):
        offset = 0
        for p in self.params:
            n = p.numel()
            p.grad = flat[offset:offset + n].view_as(p).clone()
            offset += n


def make_data(n=256, dim=12):
    x = torch.randn(n, dim)
    w = torch.randn(dim, 3)
    y = torch.tanh(x @ w)
    y[:, 2] = -0.7 * y[:, 0] + 0.3 * y[:, 2]
    return x, y


def main(steps=80):
    torch.manual_seed(4)
    random.seed(4)
    x, y = make_data()
    net = MultiTaskNet()
    optimizer = ProjectedGradients(torch.optim.Adam(net.parameters(), lr=5e-3))
    for step in range(steps):
        pick = torch.randint(0, len(x), (64,))
        outputs = net(x[pick])
        losses = [(out - y[pick, i]).square().mean() for i, out in enumerate(outputs)]
        optimizer.backward(losses)
        optimizer.step()
        if step % 20 == 0:
            print(step, [round(loss.item(), 4) for loss in losses])
    return [loss.item() for loss in losses]


if __name__ == "__main__":
    main()
