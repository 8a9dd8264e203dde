"""Quantization aware training with a learned step size (LSQ)."""
import math
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    bits: int = 2
    hidden: int = 32
    epochs: int = 12
    batch_size: int = 32
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    seed: int = 2


class LsqQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, alpha, g, qn, qp):
        ctx.save_for_backward(weight, alpha)
        ctx.other = g, qn, qp
        return (weight / alpha).round().clamp(qn, qp) * alpha

    @staticmethod
    def backward(ctx, grad_output):
        weight, alpha = ctx.saved_tensors
        g, qn, qp = ctx.other
        q_w = weight / alpha
        smaller = (q_w < qn).to(q_w.dtype)
        bigger = (q_w > qp).to(q_w.dtype)
        between = 1.0 - smaller - bigger
        slope = smaller * qn + bigger * qp + between * (q_w.round() - q_w)
        grad_alpha = (slope * grad_output * g).sum().reshape(alpha.shape)
        grad_weight = grad_output * between
        return grad_weight, grad_alpha, None, None, None


class QuantLinear(nn.Linear):
    def __init__(self, in_features, out_features, bits):
        super().__init__(in_features, out_features)
        self.qn, self.qp = -2 ** (bits - 1), 2 ** (bits - 1) - 1
        self.alpha = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("initialised", torch.tensor(False))

    def forward(self, x):
        if not self.initialised:
            with torch.no_grad():
                self.alpha.copy_(2 * self.weight.abs().mean() / math.sqrt(self.qp))
                self.initialised.fill_(True)
        g = 1.0 / math.sqrt(self.weight.numel() * self.qp)
        w_q = LsqQuantize.apply(self.weight, self.alpha, g, self.qn, self.qp)
        return F.linear(x, w_q, self.bias)

    def saturated(self):
        q = self.weight.detach() / self.alpha.detach()
        return ((q < self.qn) | (q > self.qp)).float().mean().item()


def make_model(cfg):
    return nn.Sequential(
        nn.Linear(8, cfg.hidden), nn.BatchNorm1d(cfg.hidden), nn.ReLU(),
        QuantLinear(cfg.hidden, cfg.hidden, cfg.bits), nn.BatchNorm1d(cfg.hidden), nn.ReLU(),
        QuantLinear(cfg.hidden, cfg.hidden, cfg.bits), nn.BatchNorm1d(cfg.hidden), nn.ReLU(),
        nn.Linear(cfg.hidden, 4))


def make_data(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] + x[:, 3].abs() > 0.7).long()
    return x, y


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    x, y = data
    return (model(x).argmax(1) == y).float().mean().item()


def train(cfg, model, train_set):
    optimizer = torch.optim.SGD(model.parameters(), cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.epochs)
    x, y = train_set
    for epoch in range(cfg.epochs):
        model.train()
        for index in torch.randperm(len(x)).split(cfg.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
        scheduler.step()
        if epoch % 4 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    return loss.item()


def target(weight, alpha):
    return LsqQuantize.apply(weight, alpha, 1.0, -2, 1)


def make_inputs():
    weight = torch.tensor([-3.3, 2.4, 1.9, -2.8, 4.1], dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    return weight, alpha


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = make_model(cfg)
    loss = train(cfg, model, make_data(1, 512))
    accuracy = evaluate(model, make_data(2, 512))
    saturated = [m.saturated() for m in model if isinstance(m, QuantLinear)]
    print(f"test accuracy {accuracy:.3f}")
    return {"loss": loss, "accuracy": accuracy, "saturated": saturated}


if __name__ == "__main__":
    main()
