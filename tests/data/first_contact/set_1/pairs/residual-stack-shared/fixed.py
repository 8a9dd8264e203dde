"""Depth regression from synthetic height maps with an encoder, a residual stack and a decoder."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, in_channels, num_hiddens, num_residual_hiddens):
        super().__init__()
        self._block = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(in_channels, num_residual_hiddens, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(num_residual_hiddens, num_hiddens, 1, bias=False),
        )

    def forward(self, x):
        return x + self._block(x)


class ResidualStack(nn.Module):
    def __init__(self, in_channels, num_hiddens, num_residual_layers, num_residual_hiddens):
        super().__init__()
        self._num_residual_layers = num_residual_layers
        self._layers = nn.ModuleList(
            [Residual(in_channels, num_hiddens, num_residual_hiddens) for _ in range(num_residual_layers)]
        )

    def forward(self, x):
        for layer in self._layers:
            x = layer(x)
        return F.relu(x)


class DepthNet(nn.Module):
    def __init__(self, hidden, layers, residual_hidden):
        super().__init__()
        self.encoder = nn.Conv2d(1, hidden, 4, stride=2, padding=1)
        self.stack = ResidualStack(hidden, hidden, layers, residual_hidden)
        self.decoder = nn.ConvTranspose2d(hidden, 1, 4, stride=2, padding=1)

    def forward(self, x):
        return self.decoder(self.stack(F.relu(self.encoder(x))))


def make_scenes(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 1, 4, 4, generator=g)
    depth = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)
    dy = depth[:, :, 1:, :-1] - depth[:, :, :-1, :-1]
    dx = depth[:, :, :-1, 1:] - depth[:, :, :-1, :-1]
    shading = F.pad(torch.tanh(3 * (dx + dy)), (0, 1, 0, 1))
    return shading + 0.05 * torch.randn(shading.shape, generator=g), depth


def masked_l1(pred, target):
    valid = target.abs() < 2.5
    return (pred - target).abs()[valid].mean()


def warmup_lambda(warmup, total):
    def rule(step):
        if step < warmup:
            return (step + 1) / warmup
        return 1.0 - 0.9 * (step - warmup) / max(1, total - warmup)

    return rule


class Runner:
    def __init__(self, args):
        self.args = args
        self.model = DepthNet(args.hidden, args.layers, args.residual_hidden)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.train_data = make_scenes(128, 16, 1)
        self.val_data = make_scenes(64, 16, 2)
        steps = args.epochs * (128 // args.batch_size)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warmup_lambda(5, steps))

    def train_epoch(self):
        self.model.train()
        x, y = self.train_data
        total = 0.0
        for idx in torch.randperm(len(x)).split(self.args.batch_size):
            loss = masked_l1(self.model(x[idx]), y[idx])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            total += loss.item() * len(idx)
        return total / len(x)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        return masked_l1(self.model(self.val_data[0]), self.val_data[1]).item()

    def run(self):
        for epoch in range(self.args.epochs):
            train = self.train_epoch()
            if epoch % 3 == 2:
                print(f"epoch {epoch} train {train:.4f} val {self.validate():.4f}")
        return train, self.validate()


def main(argv=()):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--residual-hidden", type=int, default=16)
    parser.add_argument("--lr", type=float, default=4e-3)
    args = parser.parse_args(list(argv))
    torch.manual_seed(args.seed)
    runner = Runner(args)
    train, val = runner.run()
    return {"train": train, "val": val, "model": runner.model}


if __name__ == "__main__":
    main()
