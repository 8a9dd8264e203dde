"""Regression with inverse square root linear units, registered as an activation."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function

ACTIVATIONS = {}


def register(name):
    def wrap(cls):
        ACTIVATIONS[name] = cls
        return cls
    return wrap


class ISRLUFunction(Function):
    @staticmethod
    def forward(ctx, tensor, alpha=1.0):
        negatives = torch.clamp(tensor, max=0)
        nisr = torch.rsqrt(1.0 + alpha * negatives ** 2)
        ctx.save_for_backward(nisr)
        return tensor * nisr

    @staticmethod
    def backward(ctx, grad_out):
        (nisr,) = ctx.saved_tensors
        return nisr ** 3, None


@register("isrlu")
class ISRLU(nn.Module):
    def __init__(self, alpha=1.0):
        super().__init__()
        self.alpha = alpha

    def forward(self, x):
        return ISRLUFunction.apply(x, self.alpha)

    def extra_repr(self):
        return f"alpha={self.alpha}"


@register("elu")
class ELU(nn.ELU):
    pass


class MLP(nn.Module):
    def __init__(self, sizes, activation="isrlu", **kwargs):
        super().__init__()
        layers = []
        for a, b in zip(sizes[:-2], sizes[1:-1]):
            layers += [nn.Linear(a, b), ACTIVATIONS[activation](**kwargs)]
        layers.append(nn.Linear(sizes[-2], sizes[-1]))
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x).squeeze(-1)


def make_data(n=800):
    g = torch.Generator().manual_seed(5)
    x = torch.rand(n, 3, generator=g) * 2 - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] ** 2 - x[:, 0] * x[:, 2]
    return x, y + 0.02 * torch.randn(n, generator=g)


def fit(model, train_set, valid_set, epochs=30, batch_size=50, lr=2e-3):
    x, y = train_set
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    history = []
    for epoch in range(epochs):
        model.train()
        perm = torch.randperm(len(x))
        for i in range(0, len(x), batch_size):
            idx = perm[i:i + batch_size]
            opt.zero_grad()
            loss = F.mse_loss(model(x[idx]), y[idx])
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            history.append(F.mse_loss(model(valid_set[0]), valid_set[1]).item())
        if epoch % 10 == 0:
            print(f"epoch {epoch:3d}  valid mse {history[-1]:.4f}")
    return history


def main():
    torch.manual_seed(0)
    x, y = make_data()
    model = MLP([3, 32, 32, 1], activation="isrlu", alpha=1.0)
    print(model)
    history = fit(model, (x[:600], y[:600]), (x[600:], y[600:]))
    print(f"final valid mse {history[-1]:.4f}")
    return model, history


if __name__ == "__main__":
    main()
