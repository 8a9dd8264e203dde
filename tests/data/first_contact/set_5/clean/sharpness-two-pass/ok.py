"""Sharpness-aware training: gradients are taken at weights moved uphill, and used at the old ones."""
import torch
from torch import nn


class UphillStep:
    """Moves the weights along their gradient by `rho` and brings them back."""

    def __init__(self, params, rho=0.05):
        self.params = list(params)
        self.rho = rho
        self.kept = None

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm().clamp(min=1e-12)
        self.kept = [p.detach().clone() for p in self.params]
        for p in self.params:
            p.add_(p.grad, alpha=self.rho / norm.item())

    @torch.no_grad()
    def descend(self):
        for p, value in zip(self.params, self.kept):
            p.copy_(value)
        self.kept = None


class TwoPassTrainer:
    def __init__(self, model, lr=0.1, rho=0.05, bn_momentum=0.1):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.uphill = UphillStep(model.parameters(), rho)
        self.norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
        self.bn_momentum = bn_momentum

    def _statistics(self, update):
        for norm in self.norms:
            norm.momentum = self.bn_momentum if update else 0.0

    def _gradients(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss.item()

    def step(self, x, y):
        self.model.train()
        self.optimizer.zero_grad()
        self._statistics(update=True)
        loss = self._gradients(x, y)
        self.uphill.climb()
        self.optimizer.zero_grad()
        self._statistics(update=False)
        self._gradients(x, y)
        self.uphill.descend()
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def accuracy(self, x, y):
        self.model.eval()
        return (self.model(x).argmax(1) == y).float().mean().item()


def build_model():
    return nn.Sequential(
        nn.Linear(6, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 4),
    )


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, (x.norm(dim=1) / 0.9).long().sub(1).clamp(0, 3)


def main(epochs=8):
    torch.manual_seed(12)
    x, y = rings(320, 1)
    xv, yv = rings(128, 2)
    trainer = TwoPassTrainer(build_model())
    for epoch in range(epochs):
        losses = [trainer.step(x[part], y[part]) for part in torch.randperm(len(x)).split(64)]
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}, accuracy {trainer.accuracy(xv, yv):.3f}")
    return trainer


if __name__ == "__main__":
    main()
