"""Few-shot dialogue-style classification with first-order meta-learning and periodic meta-evaluation."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    meta_iterations: int = 60
    inner_steps: int = 4
    inner_lr: float = 0.1
    meta_lr: float = 5e-3
    meta_batch: int = 4
    eval_every: int = 10
    n_way: int = 4
    k_shot: int = 5


class PersonaTasks:
    """Every persona is a labelling of the same feature space."""

    def __init__(self, n, args, seed, dim=12):
        g = torch.Generator().manual_seed(seed)
        self.personas = []
        for _ in range(n):
            centres = torch.randn(args.n_way, dim, generator=g)
            y = torch.arange(args.n_way).repeat(args.k_shot * 2)
            x = centres[y] + 0.8 * torch.randn(y.numel(), dim, generator=g)
            half = y.numel() // 2
            self.personas.append(((x[:half], y[:half]), (x[half:], y[half:])))

    def __len__(self):
        return len(self.personas)

    def __getitem__(self, i):
        return self.personas[i]


class Encoder(nn.Module):
    def __init__(self, dim=12, hidden=32, classes=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.cls = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.cls(self.net(x))

    def train_one_batch(self, batch, optimizer=None):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss


class MetaLearner:
    def __init__(self, args):
        self.args = args
        self.model = Encoder(classes=args.n_way)
        self.inner_opt = torch.optim.SGD(self.model.parameters(), lr=args.inner_lr)
        self.meta_opt = torch.optim.Adam(self.model.parameters(), lr=args.meta_lr)
        self.log = []

    def do_learning(self, support):
        self.model.train()
        for _ in range(self.args.inner_steps):
            self.model.train_one_batch(support, self.inner_opt)

    def meta_step(self, tasks, index):
        init = copy.deepcopy(self.model.state_dict())
        grads = [torch.zeros_like(p) for p in self.model.parameters()]
        total = 0.0
        for i in index:
            support, query = tasks[i]
            self.do_learning(support)
            loss = self.model.train_one_batch(query)
            for acc, g in zip(grads, torch.autograd.grad(loss, list(self.model.parameters()))):
                acc += g / len(index)
            total += loss.item()
            self.model.load_state_dict(init)
        for p, g in zip(self.model.parameters(), grads):
            p.grad = g
        self.meta_opt.step()
        return total / len(index)

    def meta_evaluate(self, tasks):
        init = copy.deepcopy(self.model.state_dict())
        before, after = 0.0, 0.0
        for i in range(len(tasks)):
            support, query = tasks[i]
            self.model.eval()
            with torch.no_grad():
                before += self.model.train_one_batch(query).item()
            self.do_learning(support)
            self.model.eval()
            with torch.no_grad():
                after += self.model.train_one_batch(query).item()
        self.log.append((before / len(tasks), after / len(tasks), init))
        return before / len(tasks), after / len(tasks)

    def fit(self, train, valid):
        gen = torch.Generator().manual_seed(9)
        for it in range(self.args.meta_iterations):
            index = torch.randperm(len(train), generator=gen)[:self.args.meta_batch].tolist()
            loss = self.meta_step(train, index)
            if it % self.args.eval_every == self.args.eval_every - 1:
                b, a = self.meta_evaluate(valid)
                print(f"iter {it + 1}: query loss {loss:.3f} | valid before {b:.3f} after {a:.3f}")


def main():
    args = Args()
    torch.manual_seed(4)
    learner = MetaLearner(args)
    learner.fit(PersonaTasks(40, args, 1), PersonaTasks(10, args, 2))
    drift = []
    for before, after, init in learner.log:
        drift.append(after)
    final_before, final_after = learner.meta_evaluate(PersonaTasks(10, args, 3))
    return {"valid_after": drift, "test_before": final_before, "test_after": final_after,
            "moved_by_eval": sum((v - learner.log[-1][2][k]).norm().item() for k, v in learner.model.state_dict().items())}


if __name__ == "__main__":
    main()
