"""Differentiable architecture search: second order architecture gradient by finite differences."""
import copy
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    width: int = 12
    classes: int = 3
    cells: int = 2
    batch_size: int = 32
    epochs: int = 6
    w_lr: float = 0.3
    w_momentum: float = 0.9
    w_weight_decay: float = 3e-4
    alpha_lr: float = 0.1
    seed: int = 7


class MixedOp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ops = nn.ModuleList([
            nn.Identity(),
            nn.Sequential(nn.Linear(width, width), nn.Tanh()),
            nn.Sequential(nn.Linear(width, width), nn.ReLU()),
        ])

    def forward(self, x, weights):
        return sum(w * op(x) for w, op in zip(weights, self.ops))


class SearchNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Linear(6, cfg.width)
        self.cells = nn.ModuleList([MixedOp(cfg.width) for _ in range(cfg.cells)])
        self.head = nn.Linear(cfg.width, cfg.classes)
        self.alpha = nn.Parameter(1e-3 * torch.randn(cfg.cells, 3))

    def forward(self, x):
        h = self.stem(x)
        for cell, a in zip(self.cells, F.softmax(self.alpha, dim=-1)):
            h = cell(h, a)
        return self.head(h)

    def loss(self, x, y):
        return F.cross_entropy(self(x), y)

    def weights(self):
        return [p for n, p in self.named_parameters() if n != "alpha"]


class Architect:
    def __init__(self, net, cfg):
        self.net, self.cfg = net, cfg
        self.v_net = copy.deepcopy(net)
        self.last_hessian_norm = 0.0

    def virtual_step(self, x, y, xi, w_optim):
        gradients = torch.autograd.grad(self.net.loss(x, y), self.net.weights())
        with torch.no_grad():
            for w, vw, g in zip(self.net.weights(), self.v_net.weights(), gradients):
                m = w_optim.state[w].get("momentum_buffer", 0.0)
                m = m * self.cfg.w_momentum if torch.is_tensor(m) else 0.0
                vw.copy_(w - xi * (m + g + self.cfg.w_weight_decay * w))
            self.v_net.alpha.copy_(self.net.alpha)

    def unrolled_backward(self, train, valid, xi, w_optim):
        self.virtual_step(*train, xi, w_optim)
        loss = self.v_net.loss(*valid)
        v_grads = torch.autograd.grad(loss, [self.v_net.alpha] + self.v_net.weights())
        dalpha, dw = v_grads[0], v_grads[1:]
        hessian = self.compute_hessian(dw, *train)
        self.last_hessian_norm = hessian.norm().item()
        with torch.no_grad():
            self.net.alpha.grad = dalpha - xi * hessian

    def compute_hessian(self, dw, x, y):
        norm = torch.cat([w.reshape(-1) for w in dw]).norm()
        eps = 0.01 / norm
        with torch.no_grad():
            for p, d in zip(self.net.weights(), dw):
                p += eps * d
        dalpha_pos, = torch.autograd.grad(self.net.loss(x, y), [self.net.alpha])
        with torch.no_grad():
            for p, d in zip(self.net.weights(), dw):
                p -= 2. * eps * d
        dalpha_neg, = torch.autograd.grad(self.net.loss(x, y), [self.net.alpha])
        with torch.no_grad():
            for p, d in zip(self.net.weights(), dw):
                p += eps * d
        return (dalpha_pos - dalpha_neg) / 2. * eps


def make_data(seed, n=256):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    score = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs(), torch.tanh(2 * x[:, 3])], dim=1)
    return x, score.argmax(dim=1)


def batches(data, size, generator):
    x, y = data
    order = torch.randperm(len(x), generator=generator)
    for i in range(0, len(x) - size + 1, size):
        yield x[order[i:i + size]], y[order[i:i + size]]


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    train_set, valid_set = make_data(1), make_data(2)
    net = SearchNet(cfg)
    architect = Architect(net, cfg)
    w_optim = torch.optim.SGD(net.weights(), cfg.w_lr, momentum=cfg.w_momentum, weight_decay=cfg.w_weight_decay)
    alpha_optim = torch.optim.Adam([net.alpha], cfg.alpha_lr, betas=(0.5, 0.999))
    g = torch.Generator().manual_seed(cfg.seed)
    norms = []
    for epoch in range(cfg.epochs):
        for train, valid in zip(batches(train_set, cfg.batch_size, g), batches(valid_set, cfg.batch_size, g)):
            alpha_optim.zero_grad()
            architect.unrolled_backward(train, valid, cfg.w_lr, w_optim)
            alpha_optim.step()
            norms.append(architect.last_hessian_norm)
            w_optim.zero_grad()
            loss = net.loss(*train)
            loss.backward()
            nn.utils.clip_grad_norm_(net.weights(), 5.0)
            w_optim.step()
        with torch.no_grad():
            valid_loss = net.loss(*valid_set).item()
        print(f"epoch {epoch} train {loss.item():.4f} valid {valid_loss:.4f}")
    return {"valid": valid_loss, "first_hessian_norm": norms[0], "alpha": F.softmax(net.alpha, -1)[0].tolist()}


if __name__ == "__main__":
    main()
