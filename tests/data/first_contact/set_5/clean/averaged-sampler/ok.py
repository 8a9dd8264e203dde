import contextlib
import math

import torch
from torch import nn


class Shadow:
    """Moving average of the parameters, and of the batch norm statistics by copying."""

    def __init__(self, model, decay=0.98):
        self.decay = decay
        self.values = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.parameters = {k for k, _ in model.named_parameters()}

    def update(self, model):
        for k, v in model.state_dict().items():
            if k in self.parameters:
                self.values[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
            else:
                self.values[k].copy_(v)

    @contextlib.contextmanager
    def applied(self, model):
        kept = {k: v.clone() for k, v in model.state_dict().items()}
        was_training = model.training
        model.load_state_dict(self.values)
        model.eval()
        try:
            yield model
        finally:
            model.load_state_dict(kept)
            model.train(was_training)


class Denoiser(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.freqs = nn.Parameter(torch.exp(torch.linspace(0, 3, 8)), requires_grad=False)
        self.net = nn.Sequential(nn.Linear(2 + 16, hidden), nn.BatchNorm1d(hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2))

    def forward(self, x, t):
        angles = t[:, None] * self.freqs
        return self.net(torch.cat([x, angles.sin(), angles.cos()], 1))


class Flow:
    """Rectified flow from noise to a ring, integrated with Euler steps."""

    def loss(self, model, x1):
        x0, t = torch.randn_like(x1), torch.rand(len(x1))
        xt = torch.lerp(x0, x1, t[:, None])
        return (model(xt, t) - (x1 - x0)).pow(2).mean()

    @torch.inference_mode()
    def sample(self, model, n, steps=10):
        x = torch.randn(n, 2)
        for i in range(steps):
            x += model(x, torch.full((n,), i / steps)) / steps
        return x


def ring(n):
    angle = torch.rand(n) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(n, 2)


def main():
    torch.manual_seed(5)
    model, flow = Denoiser(), Flow()
    shadow = Shadow(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 20))
    for step in range(1, 181):
        loss = flow.loss(model, ring(128))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        shadow.update(model)
        if step % 60 == 0:
            with shadow.applied(model) as averaged:
                radius = flow.sample(averaged, 256).norm(dim=1)
            print(f"step {step}: loss {loss.item():.3f}, radius {radius.mean():.3f} +- {radius.std():.3f}")


if __name__ == "__main__":
    main()
