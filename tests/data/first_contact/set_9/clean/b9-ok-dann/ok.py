import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function


class GradReverse(Function):
    @staticmethod
    def forward(ctx, x, lambd):
        ctx.lambd = lambd
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.lambd, None


class HardStep(Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        surrogate = 1.0 / (1.0 + ctx.slope * x.abs()) ** 2
        return grad_output * surrogate, None


class GatedExtractor(nn.Module):
    def __init__(self, in_features, hidden):
        super().__init__()
        self.value = nn.Linear(in_features, hidden)
        self.gate = nn.Linear(in_features, hidden)
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, x):
        gate = HardStep.apply(self.gate(x), 2.0)
        return torch.tanh(self.norm(self.value(x))) * gate


class DANN(nn.Module):
    def __init__(self, in_features=12, hidden=32, classes=3):
        super().__init__()
        self.extractor = GatedExtractor(in_features, hidden)
        self.class_classifier = nn.Linear(hidden, classes)
        self.domain_classifier = nn.Sequential(nn.Linear(hidden, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x, lambd):
        feature = self.extractor(x)
        domain = self.domain_classifier(GradReverse.apply(feature, lambd))
        return self.class_classifier(feature), domain.squeeze(-1)


def make_domain(centers, shift, n):
    y = torch.randint(centers.shape[0], (n,))
    return centers[y] + shift + 0.7 * torch.randn(n, centers.shape[1]), y


def schedule(step, total):
    p = step / total
    return 0.5 * (2.0 / (1.0 + math.exp(-10 * p)) - 1.0)


def train(model, source, target, steps, batch_size=64):
    decay = [p for n, p in model.named_parameters() if p.dim() > 1]
    no_decay = [p for n, p in model.named_parameters() if p.dim() <= 1]
    optimizer = torch.optim.SGD(
        [{"params": decay, "weight_decay": 1e-3}, {"params": no_decay}], lr=0.05, momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: (1 + 10 * s / steps) ** -0.75
    )
    for step in range(steps):
        model.train()
        si = torch.randint(len(source[0]), (batch_size,))
        ti = torch.randint(len(target[0]), (batch_size,))
        lambd = schedule(step, steps)
        class_logits, source_domain = model(source[0][si], lambd)
        _, target_domain = model(target[0][ti], lambd)
        class_loss = F.cross_entropy(class_logits, source[1][si])
        domain_loss = F.binary_cross_entropy_with_logits(
            source_domain, torch.zeros(batch_size)
        ) + F.binary_cross_entropy_with_logits(target_domain, torch.ones(batch_size))
        loss = class_loss + domain_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 50 == 49:
            print(
                f"step {step + 1} class {class_loss.item():.4f} domain {domain_loss.item():.4f} "
                f"source {test(model, source):.3f} target {test(model, target):.3f}"
            )


@torch.no_grad()
def test(model, data):
    model.eval()
    logits, _ = model(data[0], 0.0)
    return (logits.argmax(1) == data[1]).float().mean().item()


def main():
    torch.manual_seed(6)
    centers = 1.2 * torch.randn(3, 12)
    source = make_domain(centers, torch.zeros(12), 500)
    target = make_domain(centers, 0.6 * torch.randn(12), 500)
    train(DANN(), source, target, steps=200)


if __name__ == "__main__":
    main()
