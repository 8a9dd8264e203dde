import torch
import torch.nn as nn


class RegressionTasks:
    """Several targets that share a hidden map; the scales of the tasks differ by orders of magnitude."""

    def __init__(self, n_tasks, d_in=32, d_out=8, seed=0):
        gen = torch.Generator().manual_seed(seed)
        self.shared = torch.randn(d_out, d_in, generator=gen)
        self.own = 0.3 * torch.randn(n_tasks, d_out, d_in, generator=gen)
        self.sigmas = torch.tensor([1.0, 5.0, 20.0])[:n_tasks]
        self.generator = gen

    def batch(self, n):
        x = torch.randn(n, self.shared.size(1), generator=self.generator)
        y = torch.stack(
            [s * torch.tanh(x @ (self.shared + w).t() / 6) for s, w in zip(self.sigmas, self.own)], 1
        )
        return x, y


class MTLNet(nn.Module):
    def __init__(self, n_tasks, d_in=32, hidden=48, d_out=8):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(hidden, d_out) for _ in range(n_tasks))

    def forward(self, x):
        z = self.trunk(x)
        return torch.stack([head(z) for head in self.heads], 1)

    def last_shared_layer(self):
        return self.trunk[2].weight


class GradNorm:
    def __init__(self, model, n_tasks, alpha=0.12, lr=2e-2):
        self.model = model
        self.n_tasks = n_tasks
        self.alpha = alpha
        self.weights = nn.Parameter(torch.ones(n_tasks))
        self.optimizer = torch.optim.Adam([self.weights], lr=lr)
        self.initial = None

    def weighted(self, losses):
        return (self.weights.detach() * losses).sum()

    def update(self, losses):
        if self.initial is None:
            self.initial = losses.detach().clone()
        shared = self.model.last_shared_layer()
        norms = []
        for w, loss in zip(self.weights, losses):
            grad = torch.autograd.grad(loss, shared, retain_graph=True)[0].detach()
            norms.append((w * grad).norm())
        norms = torch.stack(norms)
        with torch.no_grad():
            ratio = losses / self.initial
            rate = ratio / ratio.mean()
            goal = norms.mean() * rate**self.alpha
        gap = (norms - goal).abs().sum()
        self.optimizer.zero_grad()
        self.weights.grad = torch.autograd.grad(gap, self.weights)[0]
        self.optimizer.step()
        with torch.no_grad():
            self.weights.clamp_(min=1e-2)
            self.weights.mul_(self.n_tasks / self.weights.sum())


def task_losses(pred, target):
    return (pred - target).pow(2).mean(dim=(0, 2))


def main():
    torch.manual_seed(0)
    n_tasks = 3
    tasks = RegressionTasks(n_tasks)
    model = MTLNet(n_tasks)
    balancer = GradNorm(model, n_tasks)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5)
    running = torch.zeros(n_tasks)
    for step in range(1, 201):
        x, y = tasks.batch(64)
        losses = task_losses(model(x), y)
        optimizer.zero_grad()
        balancer.weighted(losses).backward(retain_graph=True)
        balancer.update(losses)
        optimizer.step()
        scheduler.step()
        running = 0.9 * running + 0.1 * losses.detach()
        if step % 40 == 0:
            relative = (running / tasks.sigmas**2).tolist()
            weights = balancer.weights.tolist()
            print(
                f"step {step} relative losses {' '.join(f'{r:.4f}' for r in relative)} "
                f"weights {' '.join(f'{w:.3f}' for w in weights)}"
            )


if __name__ == "__main__":
    main()
