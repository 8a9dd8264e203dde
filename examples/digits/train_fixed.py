"""Train a small convolutional network on the UCI handwritten digits.

Usage: python train_fixed.py [--epochs 3] [--seed 0] [--calibrate]
"""

from __future__ import annotations

import argparse
import csv
import gzip
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

DATA = Path(__file__).with_name("digits.csv.gz")
TRAINING_IMAGES = 1_400


class Swish(torch.autograd.Function):
    """x * sigmoid(beta * x), with a learned beta."""

    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, beta, gate)
        return x * gate

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, beta, gate = ctx.saved_tensors
        slope = x * gate * (1 - gate)
        return grad_output * (gate + beta * slope), (grad_output * x * slope).sum()


class DigitsNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, kernel_size=3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.beta = nn.Parameter(torch.ones(()))
        self.hidden = nn.Linear(2 * width * 4, 128)
        self.digit_head = nn.Linear(128, 10)

    def forward(self, images):
        x = F.relu(self.norm1(self.conv1(images)))
        if self.training:
            # A little noise makes the features robust.
            x = x + 0.1 * torch.randn_like(x)
        x = F.max_pool2d(x, 2)
        x = F.max_pool2d(Swish.apply(self.norm2(self.conv2(x)), self.beta), 2)
        return self.digit_head(F.relu(self.hidden(x.flatten(1))))


def load_digits():
    """Return images (1797, 1, 8, 8), float32 in [0, 1], and labels (1797,), int64."""
    with gzip.open(DATA, "rt", newline="") as file:
        rows = torch.tensor([[int(value) for value in row] for row in csv.reader(file)])
    return rows[:, :64].view(-1, 1, 8, 8) / 16.0, rows[:, 64]


def train(model, images, labels, epochs=3, batch_size=64):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(batch_size):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}")
    return losses


def accuracy(model, images, labels):
    model.eval()
    with torch.no_grad():
        correct = (model(images).argmax(1) == labels).sum().item()
    model.train()
    return correct / len(labels)


def calibrate(model, images, labels, steps=50):
    """Fit a softmax temperature by gradient descent (Guo et al. 2017)."""
    with torch.no_grad():
        logits = model(images)
    temperature = torch.ones(1, requires_grad=True)
    for _ in range(steps):
        F.cross_entropy(logits / temperature, labels).backward()
        with torch.no_grad():
            temperature -= 0.1 * temperature.grad
        temperature.grad = None
    return temperature.item()


def main():
    parser = argparse.ArgumentParser(description="Train on the UCI handwritten digits.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calibrate", action="store_true")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    images, labels = load_digits()
    model = DigitsNet()
    train(model, images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES], epochs=arguments.epochs)
    held_out = images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:]
    print(f"accuracy on held-out images: {accuracy(model, *held_out):.1%}")
    if arguments.calibrate:
        print(f"temperature: {calibrate(model, *held_out):.3f}")


def swish_inputs():
    """Inputs to check the gradients of Swish at."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    beta = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    return x, beta


def one_loss():
    """The loss of one batch and the model, to look at its graph."""
    torch.manual_seed(0)
    images, labels = load_digits()
    model = DigitsNet()
    return F.cross_entropy(model(images[:64]), labels[:64]), model


if __name__ == "__main__":
    main()
