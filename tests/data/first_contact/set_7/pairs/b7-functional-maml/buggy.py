from collections import OrderedDict
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class PatchedModule:
    """A module whose parameters are replaced by a chain of fast weights."""

    def __init__(self, module, copy_initial_weights=True):
        self.module = module
        self.fast_params = OrderedDict()
        for name, p in module.named_parameters():
            self.fast_params[name] = p.detach().clone().requires_grad_() if copy_initial_weights else p.clone()

    def __call__(self, *args):
        return functional_call(self.module, self.fast_params, args)

    def parameters(self):
        return list(self.fast_params.values())

    def update(self, new_params):
        self.fast_params = OrderedDict(zip(self.fast_params.keys(), new_params))


class DifferentiableSGD:
    def __init__(self, opt, fmodel, track_higher_grads=True):
        self.lr = opt.param_groups[0]["lr"]
        self.fmodel = fmodel
        self.track = track_higher_grads

    def step(self, loss):
        params = self.fmodel.parameters()
        grads = torch.autograd.grad(loss, params, create_graph=self.track)
        new = [p - self.lr * g for p, g in zip(params, grads)]
        if not self.track:
            new = [p.detach().requires_grad_() for p in new]
        self.fmodel.update(new)


@contextmanager
def innerloop_ctx(model, opt, copy_initial_weights=True, track_higher_grads=True):
    fmodel = PatchedModule(model, copy_initial_weights)
    yield fmodel, DifferentiableSGD(opt, fmodel, track_higher_grads)


class SinusoidTasks:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def next(self, task_num, k_shot, k_query):
        xs, ys = [], []
        for _ in range(task_num):
            amp, phase = self.rng.uniform(0.5, 2.0), self.rng.uniform(0, np.pi)
            x = self.rng.uniform(-5, 5, (k_shot + k_query, 1))
            xs.append(x)
            ys.append(amp * np.sin(x + phase))
        x = torch.tensor(np.stack(xs), dtype=torch.float32)
        y = torch.tensor(np.stack(ys), dtype=torch.float32)
        return x[:, :k_shot], y[:, :k_shot], x[:, k_shot:], y[:, k_shot:]


def build_net():
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def train(db, net, meta_opt, iterations, task_num=8, n_inner_iter=3, inner_lr=0.05):
    net.train()
    inner_opt = torch.optim.SGD(net.parameters(), lr=inner_lr)
    history = []
    for it in range(iterations):
        x_spt, y_spt, x_qry, y_qry = db.next(task_num, 10, 10)
        qry_losses = []
        meta_opt.zero_grad()
        for i in range(task_num):
            with innerloop_ctx(net, inner_opt) as (fnet, diffopt):
                for _ in range(n_inner_iter):
                    diffopt.step(F.mse_loss(fnet(x_spt[i]), y_spt[i]))
                qry_loss = F.mse_loss(fnet(x_qry[i]), y_qry[i])
                qry_losses.append(qry_loss.detach())
                qry_loss.backward()
        meta_opt.step()
        history.append(torch.stack(qry_losses).mean().item())
        if (it + 1) % 10 == 0:
            print(f"[iter {it + 1}] query loss {np.mean(history[-10:]):.4f}")


def test(db, net, task_num=32, n_inner_iter=5, inner_lr=0.05):
    net.eval()
    inner_opt = torch.optim.SGD(net.parameters(), lr=inner_lr)
    x_spt, y_spt, x_qry, y_qry = db.next(task_num, 10, 10)
    losses = []
    for i in range(task_num):
        with innerloop_ctx(net, inner_opt, track_higher_grads=False) as (fnet, diffopt):
            for _ in range(n_inner_iter):
                diffopt.step(F.mse_loss(fnet(x_spt[i]), y_spt[i]))
            losses.append(F.mse_loss(fnet(x_qry[i]), y_qry[i]).item())
    return float(np.mean(losses))


def main():
    torch.manual_seed(1)
    net = build_net()
    meta_opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    train(SinusoidTasks(2), net, meta_opt, iterations=40)
    print(f"[test] query loss {test(SinusoidTasks(3), net):.4f}")


if __name__ == "__main__":
    main()
