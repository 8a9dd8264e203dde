"""First-order meta-learning of sinusoid regression with an inner optimizer."""
from collections import OrderedDict
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F


class Learner(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.layers = nn.Sequential(OrderedDict([
            ("fc1", nn.Linear(1, hidden)), ("act1", nn.ReLU()),
            ("fc2", nn.Linear(hidden, hidden)), ("act2", nn.ReLU()),
            ("out", nn.Linear(hidden, 1))]))

    def forward(self, x):
        return self.layers(x)


class SinusoidTasks:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def sample(self, n_support, n_query):
        amp = torch.rand(1, generator=self.g) * 4 + 1
        phase = torch.rand(1, generator=self.g) * 3.14
        x = torch.rand(n_support + n_query, 1, generator=self.g) * 10 - 5
        y = amp * torch.sin(x - phase)
        return x[:n_support], y[:n_support], x[n_support:], y[n_support:]


class Meta:
    def __init__(self, args):
        self.args = args
        self.net = Learner()
        self.meta_optim = torch.optim.Adam(self.net.parameters(), lr=args.meta_lr)
        self.inner_optim = torch.optim.SGD(self.net.parameters(), lr=args.update_lr)

    def adapt(self, x, y):
        for _ in range(self.args.update_step):
            self.inner_optim.zero_grad()
            loss = F.mse_loss(self.net(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 5)
            self.inner_optim.step()

    def query_gradient(self, x, y):
        loss = F.mse_loss(self.net(x), y)
        grads = torch.autograd.grad(loss, list(self.net.parameters()))
        return loss.item(), grads

    def meta_step(self, tasks):
        parameters_origin = {k: v.clone() for k, v in self.net.state_dict().items()}
        total = [torch.zeros_like(p) for p in self.net.parameters()]
        losses = []
        for _ in range(self.args.task_num):
            spt_x, spt_y, qry_x, qry_y = tasks.sample(self.args.k_spt, self.args.k_qry)
            self.adapt(spt_x, spt_y)
            loss, grads = self.query_gradient(qry_x, qry_y)
            losses.append(loss)
            for t, g in zip(total, grads):
                t.add_(g, alpha=1 / self.args.task_num)
            self.net.load_state_dict(parameters_origin)

        self.meta_optim.zero_grad()
        for p, t in zip(self.net.parameters(), total):
            p.grad = t
        self.meta_optim.step()
        return sum(losses) / len(losses)

    def evaluate(self, tasks, n_tasks=20):
        saved = {k: v.clone() for k, v in self.net.state_dict().items()}
        losses = []
        for _ in range(n_tasks):
            spt_x, spt_y, qry_x, qry_y = tasks.sample(self.args.k_spt, 50)
            self.adapt(spt_x, spt_y)
            with torch.no_grad():
                losses.append(F.mse_loss(self.net(qry_x), qry_y).item())
            self.net.load_state_dict(saved)
        return sum(losses) / len(losses)


def main():
    torch.manual_seed(0)
    args = SimpleNamespace(meta_lr=2e-3, update_lr=0.02, update_step=5,
                           task_num=6, k_spt=10, k_qry=15, steps=40)
    meta = Meta(args)
    tasks = SinusoidTasks(seed=1)
    history = []
    for step in range(args.steps):
        loss = meta.meta_step(tasks)
        if step % 20 == 0:
            history.append(meta.evaluate(SinusoidTasks(seed=2)))
            print(f"step {step:3d}  query loss {loss:.3f}  held-out {history[-1]:.3f}")
    history.append(meta.evaluate(SinusoidTasks(seed=2)))
    print(f"held-out loss after adaptation {history[-1]:.3f}")
    return meta, history


if __name__ == "__main__":
    main()
