"""First-order MAML for few-shot classification."""
import copy
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F


class EmbeddingNet(nn.Module):
    def __init__(self, dim=16, hidden=32, ways=3):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, ways)

    def forward(self, x):
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


class EpisodeSampler:
    def __init__(self, ways=3, shots=5, queries=10, dim=16, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.ways, self.shots, self.queries, self.dim = ways, shots, queries, dim
        self.basis = torch.randn(4, dim, generator=torch.Generator().manual_seed(77))

    def episode(self):
        centers = torch.randn(self.ways, 4, generator=self.g) @ self.basis
        n = self.shots + self.queries
        x = centers[:, None] + 1.5 * torch.randn(self.ways, n, self.dim, generator=self.g)
        y = torch.arange(self.ways)[:, None].expand(self.ways, n)
        s = self.shots
        return (x[:, :s].reshape(-1, self.dim), y[:, :s].reshape(-1),
                x[:, s:].reshape(-1, self.dim), y[:, s:].reshape(-1))


class FOMAML:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.outer = torch.optim.Adam(model.parameters(), lr=cfg.outer_lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.outer, 60, gamma=0.5)

    def adapt(self, support_x, support_y, steps):
        learner = copy.deepcopy(self.model)
        params = list(learner.parameters())
        for _ in range(steps):
            loss = F.cross_entropy(learner(support_x), support_y)
            grads = torch.autograd.grad(loss, params)
            with torch.no_grad():
                for p, g in zip(params, grads):
                    p.sub_(g, alpha=self.cfg.inner_lr)
        return learner

    def meta_step(self, sampler):
        self.outer.zero_grad()
        total = 0.0
        for _ in range(self.cfg.meta_batch):
            sx, sy, qx, qy = sampler.episode()
            learner = self.adapt(sx, sy, self.cfg.inner_steps)
            loss = F.cross_entropy(learner(qx), qy)
            grads = torch.autograd.grad(loss, list(learner.parameters()))
            for p, g in zip(self.model.parameters(), grads):
                g = g / self.cfg.meta_batch
                p.grad = g if p.grad is None else p.grad + g
            total += loss.item() / self.cfg.meta_batch
        self.outer.step()
        self.scheduler.step()
        return total

    def evaluate(self, sampler, episodes=20):
        correct = count = 0
        for _ in range(episodes):
            sx, sy, qx, qy = sampler.episode()
            learner = self.adapt(sx, sy, self.cfg.inner_steps)
            with torch.no_grad():
                correct += (learner(qx).argmax(1) == qy).sum().item()
            count += len(qy)
        return correct / count


def main():
    torch.manual_seed(0)
    cfg = SimpleNamespace(inner_lr=0.1, outer_lr=3e-3, inner_steps=3, meta_batch=4)
    algo = FOMAML(EmbeddingNet(), cfg)
    train = EpisodeSampler(seed=1)
    print(f"before  accuracy {algo.evaluate(EpisodeSampler(seed=2)):.3f}")
    for step in range(100):
        loss = algo.meta_step(train)
        if step % 25 == 0:
            print(f"step {step:3d}  query loss {loss:.4f}")
    print(f"after   accuracy {algo.evaluate(EpisodeSampler(seed=2)):.3f}")
    return algo


if __name__ == "__main__":
    main()
