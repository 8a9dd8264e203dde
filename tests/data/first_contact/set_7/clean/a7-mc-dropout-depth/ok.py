import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, p):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.bn = nn.BatchNorm2d(cout)
        self.drop = nn.Dropout2d(p)

    def forward(self, x):
        return self.drop(F.relu(self.bn(self.conv(x))))


class DepthNet(nn.Module):
    def __init__(self, p=0.2):
        super().__init__()
        self.enc = ConvBlock(1, 16, p)
        self.mid = ConvBlock(16, 16, p)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        h = self.enc(x)
        h = h + self.mid(h)
        mean, log_var = self.out(h).chunk(2, dim=1)
        return mean, log_var.clamp(-6, 4)


@contextlib.contextmanager
def stochastic_dropout(model):
    layers = [m for m in model.modules() if isinstance(m, nn.Dropout2d)]
    for m in layers:
        m.train()
    try:
        yield
    finally:
        for m in layers:
            m.eval()


@torch.no_grad()
def predictive(model, x, n_samples=12):
    model.eval()
    with stochastic_dropout(model):
        draws = [model(x) for _ in range(n_samples)]
    means = torch.stack([m for m, _ in draws])
    aleatoric = torch.stack([v.exp() for _, v in draws]).mean(0)
    return means.mean(0), means.var(0) + aleatoric


def gaussian_nll(mean, log_var, target):
    return 0.5 * (log_var + (target - mean).pow(2) * torch.exp(-log_var)).mean()


def scenes(n):
    axis = torch.linspace(-1, 1, 12)
    slope = torch.randn(n, 2, 1, 1)
    depth = slope[:, 0] * axis[:, None] + slope[:, 1] * axis[None]
    shade = torch.sin(3 * depth) + 0.5 * depth
    sigma = 0.05 + 0.25 * (axis[None, :, None] > 0).float()
    return shade.unsqueeze(1), (depth + sigma * torch.randn(n, 12, 12)).unsqueeze(1)


def main():
    torch.manual_seed(0)
    model = DepthNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    x_val, y_val = scenes(32)
    for epoch in range(4):
        model.train()
        running = torch.zeros(())
        for _ in range(30):
            x, y = scenes(16)
            loss = gaussian_nll(*model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.detach()
        mean, var = predictive(model, x_val)
        rmse = F.mse_loss(mean, y_val).sqrt().item()
        left, right = var[..., :6, :].mean().item(), var[..., 6:, :].mean().item()
        print(f"epoch {epoch} nll {running.item() / 30:.4f} rmse {rmse:.4f} var {left:.4f} {right:.4f}")


if __name__ == "__main__":
    main()
