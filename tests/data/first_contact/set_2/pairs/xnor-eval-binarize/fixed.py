"""XNOR-style training: binary weights in forward and backward, real-valued weights in the update."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Flags:
    features: int = 16
    hidden: int = 48
    classes: int = 4
    samples: int = 320
    batch: int = 32
    epochs: int = 15
    lr: float = 1e-3
    seed: int = 13


class BinOp:
    def __init__(self, model):
        layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.target_modules = [m.weight for m in layers[1:-1]]
        self.saved_params = [w.data.clone() for w in self.target_modules]

    def binarization(self):
        self.clamp()
        for saved, weight in zip(self.saved_params, self.target_modules):
            saved.copy_(weight.data)
            scale = weight.data.abs().mean(dim=1, keepdim=True)
            weight.data.copy_(weight.data.sign().mul(scale))

    def clamp(self):
        for weight in self.target_modules:
            weight.data.clamp_(-1.0, 1.0)

    def restore(self):
        for saved, weight in zip(self.saved_params, self.target_modules):
            weight.data.copy_(saved)

    def update_gradients(self):
        for weight in self.target_modules:
            scale = weight.data.abs().mean(dim=1, keepdim=True)
            inside = (weight.data.abs() <= 1.0).to(weight.dtype)
            weight.grad.data.mul_(scale * inside + 1.0 / weight[0].numel())


class Net(nn.Module):
    def __init__(self, flags):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(flags.features, flags.hidden), nn.BatchNorm1d(flags.hidden), nn.Hardtanh(),
            nn.Linear(flags.hidden, flags.hidden), nn.BatchNorm1d(flags.hidden), nn.Hardtanh(),
            nn.Linear(flags.hidden, flags.hidden), nn.BatchNorm1d(flags.hidden), nn.Hardtanh(),
            nn.Linear(flags.hidden, flags.classes),
        )

    def forward(self, x):
        return self.layers(x)


def make_data(flags):
    x = torch.randn(flags.samples, flags.features)
    y = (x[:, :4].prod(dim=1) > 0).long() + 2 * (x[:, 4] + x[:, 5] * x[:, 6] > 0).long()
    return (x[:256], y[:256]), (x[256:], y[256:])


def train(model, bin_op, optimizer, data, flags):
    model.train()
    x, y = data
    total = 0.0
    for index in torch.randperm(len(x)).split(flags.batch):
        optimizer.zero_grad()
        bin_op.binarization()
        loss = F.cross_entropy(model(x[index]), y[index])
        loss.backward()
        bin_op.restore()
        bin_op.update_gradients()
        optimizer.step()
        total += loss.item() * len(index)
    return total / len(x)


def evaluate(model, bin_op, data):
    model.eval()
    x, y = data
    bin_op.binarization()
    with torch.no_grad():
        logits = model(x)
    bin_op.restore()
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def main(flags=Flags()):
    torch.manual_seed(flags.seed)
    train_data, test_data = make_data(flags)
    model = Net(flags)
    bin_op = BinOp(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=flags.lr, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8, 12], gamma=0.3)
    best = 0.0
    for epoch in range(flags.epochs):
        loss = train(model, bin_op, optimizer, train_data, flags)
        test_loss, accuracy = evaluate(model, bin_op, test_data)
        scheduler.step()
        best = max(best, accuracy)
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1:2d}  loss {loss:.4f}  test {test_loss:.4f}  acc {accuracy:.3f}")
    return {"loss": loss, "best": best, "weights": [w.detach().clone() for w in bin_op.target_modules]}


if __name__ == "__main__":
    main()
