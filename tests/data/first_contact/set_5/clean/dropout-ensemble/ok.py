"""Regression with uncertainty: dropout is left on while predicting, and the spread of many passes is the uncertainty."""
import math
from contextlib import contextmanager

import torch
import torch.nn as nn


class Regressor(nn.Module):
    def __init__(self, hidden=48, p=0.1):
        super().__init__()
        self.inp = nn.Linear(1, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(p)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x):
        h = self.drop(torch.relu(self.norm(self.inp(x))))
        h = self.drop(torch.relu(self.mid(h)))
        mean, log_var = self.out(h).unbind(-1)
        return mean, log_var.clamp(-6, 4)


@contextmanager
def sampling(model):
    """Evaluation mode, but for dropout: batch norm uses its running statistics, masks are drawn."""
    was_training = model.training
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    try:
        yield model
    finally:
        model.train(was_training)


@torch.no_grad()
def predict(model, x, passes=30):
    with sampling(model):
        means, variances = [], []
        for _ in range(passes):
            mean, log_var = model(x)
            means.append(mean)
            variances.append(log_var.exp())
    means, variances = torch.stack(means), torch.stack(variances)
    return means.mean(0), means.var(0), variances.mean(0)


def nll(mean, log_var, y):
    return 0.5 * (log_var + (y - mean).square() / log_var.exp() + math.log(2 * math.pi)).mean()


def fit(model, x, y, steps=150, warmup=50):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    recent = torch.zeros(())
    for step in range(steps):
        pick = torch.randint(0, len(x), (64,))
        mean, log_var = model(x[pick])
        if step < warmup:
            loss = nll(mean, 0.0 * log_var, y[pick])
        else:
            loss = nll(mean, log_var, y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent = 0.9 * recent + 0.1 * loss.detach()
        if step % 50 == 49:
            _, model_var, noise_var = predict(model, x[:32])
            print(f"step {step + 1}: running loss {recent.item():.3f}, spread {model_var.mean().item():.4f}, "
                  f"noise {noise_var.mean().item():.4f}")
    return model


def main():
    torch.manual_seed(14)
    x = torch.rand(256, 1) * 6 - 3
    y = torch.sin(2 * x[:, 0]) + (0.05 + 0.1 * x[:, 0].abs()) * torch.randn(256)
    model = fit(Regressor(), x, y)
    inside = predict(model, torch.linspace(-2, 2, 20).unsqueeze(1))[1].mean().item()
    outside = predict(model, torch.linspace(6, 9, 20).unsqueeze(1))[1].mean().item()
    print(f"spread inside {inside:.4f}, outside {outside:.4f}")
    return inside, outside


if __name__ == "__main__":
    main()
