"""Adversarial training with projected gradient descent on a small image-like problem."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


def get_args(argv=()):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", default=50, type=int)
    parser.add_argument("--epochs", default=8, type=int)
    parser.add_argument("--attack", default="pgd", choices=["none", "fgsm", "pgd"])
    parser.add_argument("--epsilon", default=0.12, type=float)
    parser.add_argument("--alpha", default=0.04, type=float)
    parser.add_argument("--attack-iters", default=10, type=int)
    parser.add_argument("--lr-max", default=2e-2, type=float)
    parser.add_argument("--seed", default=0, type=int)
    return parser.parse_args(list(argv))


def mnist_net():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 5))


def make_data(seed, n):
    prototypes = torch.rand(5, 64, generator=torch.Generator().manual_seed(99))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=g)
    x = prototypes[y] + 0.15 * torch.randn(n, 64, generator=g)
    return x.clamp(0, 1), y


class Attacker:
    def __init__(self, args, model, opt):
        self.args, self.model, self.opt = args, model, opt

    def init_delta(self, x):
        delta = torch.zeros_like(x).uniform_(-self.args.epsilon, self.args.epsilon)
        delta.data = torch.max(torch.min(1 - x, delta.data), 0 - x)
        delta.requires_grad = True
        return delta

    def update(self, delta, x, grad, rate):
        eps = self.args.epsilon
        delta.data = torch.clamp(delta.data + rate * torch.sign(grad), -eps, eps)
        delta.data = torch.max(torch.min(1 - x, delta.data), 0 - x)

    def fgsm(self, x, y):
        delta = self.init_delta(x)
        loss = F.cross_entropy(self.model(x + delta), y)
        loss.backward()
        self.update(delta, x, delta.grad.detach(), 1.25 * self.args.epsilon)
        return delta.detach()

    def pgd(self, x, y):
        delta = self.init_delta(x)
        for _ in range(self.args.attack_iters):
            output = self.model(x + delta)
            loss = F.cross_entropy(output, y)
            self.opt.zero_grad()
            loss.backward()
            grad = delta.grad.detach()
            self.update(delta, x, grad, self.args.alpha)
            delta.grad.zero_()
        return delta.detach()

    def __call__(self, x, y):
        if self.args.attack == "none":
            return torch.zeros_like(x)
        return self.fgsm(x, y) if self.args.attack == "fgsm" else self.pgd(x, y)


def robust_loss(model, args, x, y, iters=30):
    """Independent, strong evaluation attack."""
    delta = torch.zeros_like(x)
    for _ in range(iters):
        delta.requires_grad_(True)
        loss = F.cross_entropy(model(x + delta), y)
        grad, = torch.autograd.grad(loss, delta)
        delta = (delta.detach() + 0.02 * grad.sign()).clamp(-args.epsilon, args.epsilon)
        delta = torch.max(torch.min(1 - x, delta), 0 - x)
    with torch.no_grad():
        output = model(x + delta)
    return F.cross_entropy(output, y).item(), (output.argmax(1) == y).float().mean().item()


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    x, y = make_data(1, 500)
    model = mnist_net()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr_max)
    attack = Attacker(args, model, opt)
    steps = args.epochs * (len(x) // args.batch_size)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr_max, total_steps=steps)
    attack_losses = []
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for index in torch.randperm(len(x)).split(args.batch_size):
            xb, yb = x[index], y[index]
            delta = attack(xb, yb)
            loss = F.cross_entropy(model(xb + delta), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            scheduler.step()
            attack_losses.append(loss.item())
            total += loss.item() * len(index)
        print(f"epoch {epoch} adversarial train loss {total / len(x):.4f}")
    model.eval()
    loss, accuracy = robust_loss(model, args, *make_data(2, 300))
    print(f"robust test loss {loss:.4f} accuracy {accuracy:.3f}")
    return {"robust_loss": loss, "robust_accuracy": accuracy, "train_adv_loss": sum(attack_losses[-10:]) / 10}


if __name__ == "__main__":
    main()
