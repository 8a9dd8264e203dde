import math

import torch
from torch import nn, optim
from torch.func import functional_call


class SineTask:
    def __init__(self, generator):
        self.generator = generator
        self.amplitude = self._uniform(0.5, 3.0)
        self.phase = self._uniform(0.0, math.pi)

    def _uniform(self, low, high, *shape):
        return low + (high - low) * torch.rand(shape, generator=self.generator)

    def sample(self, shots):
        x = self._uniform(-4.0, 4.0, shots, 1)
        return x, self.amplitude * torch.sin(x + self.phase)


class Regressor(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.net(x)


class Learner:
    def __init__(self, module, params, lrs, first_order):
        self.module = module
        self.params = params
        self.lrs = lrs
        self.first_order = first_order

    def __call__(self, x):
        return functional_call(self.module, self.params, (x,))

    def adapt(self, loss):
        second_order = not self.first_order
        gradients = torch.autograd.grad(
            loss,
            list(self.params.values()),
            retain_graph=second_order,
            create_graph=second_order,
        )
        self.params = {
            name: p - lr * g
            for (name, p), lr, g in zip(self.params.items(), self.lrs, gradients)
        }


class MetaSGD(nn.Module):
    def __init__(self, model, lr=0.01, first_order=False):
        super().__init__()
        self.module = model
        self.lrs = nn.ParameterList([nn.Parameter(torch.ones_like(p) * lr) for p in model.parameters()])
        self.first_order = first_order

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def clone(self):
        params = {name: p.clone() for name, p in self.module.named_parameters()}
        return Learner(self.module, params, [lr.clone() for lr in self.lrs], self.first_order)


def fast_adapt(learner, task, loss_fn, adapt_steps, shots):
    x, y = task.sample(shots)
    for _ in range(adapt_steps):
        learner.adapt(loss_fn(learner(x), y))
    x, y = task.sample(shots)
    return loss_fn(learner(x), y)


def evaluate(meta_learner, loss_fn, adapt_steps, shots, n_tasks=40):
    generator = torch.Generator().manual_seed(999)
    errors = []
    for _ in range(n_tasks):
        learner = meta_learner.clone()
        errors.append(fast_adapt(learner, SineTask(generator), loss_fn, adapt_steps, shots).item())
    return sum(errors) / len(errors)


def main(
    adapt_lr=0.01,
    meta_lr=0.003,
    adapt_steps=1,
    num_iterations=90,
    meta_bsz=8,
    shots=10,
    seed=42,
):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Regressor()
    meta_learner = MetaSGD(model, lr=adapt_lr)
    opt = optim.Adam(meta_learner.parameters(), lr=meta_lr)
    loss_fn = nn.MSELoss()

    for iteration in range(num_iterations):
        iteration_loss = 0.0
        for _ in range(meta_bsz):
            learner = meta_learner.clone()
            task = SineTask(generator)
            iteration_loss = iteration_loss + fast_adapt(learner, task, loss_fn, adapt_steps, shots)
        adaptation_loss = iteration_loss / meta_bsz

        opt.zero_grad()
        adaptation_loss.backward()
        opt.step()

        if iteration % 30 == 29:
            test_loss = evaluate(meta_learner, loss_fn, adapt_steps, shots)
            lr_mean = torch.cat([lr.detach().flatten() for lr in meta_learner.lrs]).mean().item()
            print(
                f"iteration {iteration + 1} adaptation_loss {adaptation_loss.item():.4f} "
                f"test {test_loss:.4f} mean lr {lr_mean:.4f}"
            )


if __name__ == "__main__":
    main()
