from copy import deepcopy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class MetaModel(nn.Module):
    def point_grad_to(self, adapted):
        for p, q in zip(self.parameters(), adapted.parameters()):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.data.add_(p.data - q.data)

    def clone(self):
        return deepcopy(self)


class GlyphNet(MetaModel):
    def __init__(self, n_ways, size=12, width=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1),
            nn.BatchNorm2d(width, track_running_stats=False),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
            nn.BatchNorm2d(width, track_running_stats=False),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(width * (size // 4) ** 2, n_ways)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class GlyphTasks:
    def __init__(self, n_glyphs, size, seed):
        rng = np.random.default_rng(seed)
        self.glyphs = (rng.random((n_glyphs, size, size)) < 0.3).astype(np.float32)
        self.rng = rng

    def sample(self, n_ways, k_shot):
        chosen = self.rng.choice(len(self.glyphs), n_ways, replace=False)
        labels = np.repeat(np.arange(n_ways), k_shot)
        x = self.glyphs[chosen[labels]] + 0.4 * self.rng.standard_normal((len(labels), *self.glyphs.shape[1:]))
        perm = self.rng.permutation(len(labels))
        return (
            torch.tensor(x[perm], dtype=torch.float32).unsqueeze(1),
            torch.tensor(labels[perm], dtype=torch.long),
        )


def get_optimizer(net, lr, state=None):
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.0, 0.999))
    if state is not None:
        optimizer.load_state_dict(deepcopy(state))
    return optimizer


def do_learning(net, optimizer, task, iterations, batch, rng):
    net.train()
    x, y = task
    for _ in range(iterations):
        idx = torch.tensor(rng.choice(len(y), batch, replace=False))
        loss = F.cross_entropy(net(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def set_learning_rate(optimizer, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr


def evaluate(meta_net, tasks, state, lr, rng, n_ways, n_tasks=10):
    correct = total = 0
    for _ in range(n_tasks):
        x, y = tasks.sample(n_ways, 10)
        support, query = slice(0, len(y) // 2), slice(len(y) // 2, None)
        net = meta_net.clone()
        do_learning(net, get_optimizer(net, lr, state), (x[support], y[support]), 5, 10, rng)
        net.eval()
        with torch.no_grad():
            pred = net(x[query]).argmax(1)
        correct += (pred == y[query]).sum().item()
        total += len(pred)
    return correct / total


def main():
    torch.manual_seed(5)
    rng = np.random.default_rng(6)
    n_ways, size = 5, 12
    train_tasks, test_tasks = GlyphTasks(60, size, 7), GlyphTasks(20, size, 8)
    meta_net = GlyphNet(n_ways, size)
    meta_optimizer = torch.optim.SGD(meta_net.parameters(), lr=1.0)
    inner_lr, meta_lr, meta_iterations = 2e-3, 1.0, 40
    state = None
    for it in range(meta_iterations):
        set_learning_rate(meta_optimizer, meta_lr * (1 - it / meta_iterations))
        net = meta_net.clone()
        optimizer = get_optimizer(net, inner_lr, state)
        loss = do_learning(net, optimizer, train_tasks.sample(n_ways, 10), 5, 10, rng)
        state = optimizer.state_dict()
        meta_net.point_grad_to(net)
        meta_optimizer.step()
        meta_optimizer.zero_grad()
        if (it + 1) % 10 == 0:
            acc = evaluate(meta_net, test_tasks, state, inner_lr, rng, n_ways)
            print(f"[meta {it + 1}] inner loss {loss:.4f} few-shot accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
