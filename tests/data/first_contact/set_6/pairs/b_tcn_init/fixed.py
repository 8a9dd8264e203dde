"""Temporal convolutional network on the adding problem."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


class Chomp1d(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return x[:, :, :-self.size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_in, n_out, kernel_size, dilation, dropout=0.1):
        super().__init__()
        padding = (kernel_size - 1) * dilation
        self.conv1 = nn.Conv1d(
            n_in, n_out, kernel_size, padding=padding, dilation=dilation)
        self.conv2 = nn.Conv1d(
            n_out, n_out, kernel_size, padding=padding, dilation=dilation)
        self.net = nn.Sequential(
            self.conv1, Chomp1d(padding), nn.ReLU(), nn.Dropout(dropout),
            self.conv2, Chomp1d(padding), nn.ReLU(), nn.Dropout(dropout))
        self.downsample = nn.Conv1d(n_in, n_out, 1) if n_in != n_out else None
        self.init_weights()
        weight_norm(self.conv1)
        weight_norm(self.conv2)

    def init_weights(self):
        self.conv1.weight.data.normal_(0, 0.01)
        self.conv2.weight.data.normal_(0, 0.01)
        if self.downsample is not None:
            self.downsample.weight.data.normal_(0, 0.01)

    def forward(self, x):
        res = x if self.downsample is None else self.downsample(x)
        return F.relu(self.net(x) + res)


class TCN(nn.Module):
    def __init__(self, n_in, n_out, channels, kernel_size=5):
        super().__init__()
        blocks, prev = [], n_in
        for i, c in enumerate(channels):
            blocks.append(TemporalBlock(prev, c, kernel_size, dilation=2 ** i))
            prev = c
        self.tcn = nn.Sequential(*blocks)
        self.linear = nn.Linear(prev, n_out)
        self.linear.weight.data.normal_(0, 0.01)

    def forward(self, x):
        return self.linear(self.tcn(x)[:, :, -1])


def adding_problem(n, length, generator):
    values = torch.rand(n, length, generator=generator)
    markers = torch.zeros(n, length)
    first = torch.randint(0, length // 2, (n,), generator=generator)
    second = torch.randint(length // 2, length, (n,), generator=generator)
    rows = torch.arange(n)
    markers[rows, first] = 1
    markers[rows, second] = 1
    y = values[rows, first] + values[rows, second]
    return torch.stack([values, markers], dim=1), y.unsqueeze(1)


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        return F.mse_loss(model(x), y).item()


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    length = 32
    test_x, test_y = adding_problem(200, length, g)
    model = TCN(2, 1, [16, 16, 16])
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    history = [evaluate(model, test_x, test_y)]
    for step in range(150):
        model.train()
        x, y = adding_problem(32, length, g)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if (step + 1) % 30 == 0:
            history.append(evaluate(model, test_x, test_y))
            print(f"step {step + 1:3d}  test mse {history[-1]:.4f}")
    return model, history


if __name__ == "__main__":
    main()
