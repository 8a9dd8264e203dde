"""Fine-tuning in bfloat16 with float32 copies of the weights inside the optimizer."""
import io
from types import SimpleNamespace

import torch
import torch.nn as nn


class MixedPrecisionOptimizer:
    """Keeps a float32 copy of each parameter; the inner optimizer works on the copies."""

    def __init__(self, make_inner, params):
        self.model_params = [p for p in params if p.requires_grad]
        self.main_params = [nn.Parameter(p.detach().float()) for p in self.model_params]
        self.inner = make_inner(self.main_params)

    def zero_grad(self):
        for p in self.model_params:
            p.grad = None

    def reload_model_params(self):
        with torch.no_grad():
            for main, model in zip(self.main_params, self.model_params):
                main.copy_(model)

    @torch.no_grad()
    def step(self):
        for main, model in zip(self.main_params, self.model_params):
            main.grad = None if model.grad is None else model.grad.float()
        self.inner.step()
        for main, model in zip(self.main_params, self.model_params):
            model.copy_(main)

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "main": [p.detach().clone() for p in self.main_params]}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        with torch.no_grad():
            for p, saved in zip(self.main_params, state["main"]):
                p.copy_(saved)


class Regressor(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def load_checkpoint(model, optimizer, file, finetune):
    state = torch.load(file)
    model.load_state_dict(state["model"])
    if not finetune:
        optimizer.load_state_dict(state["optimizer"])
    else:
        optimizer.reload_model_params()
    return 0 if finetune else state["iteration"]


def setup_model_and_optimizer(args, file=None):
    model = Regressor().to(torch.bfloat16)
    optimizer = MixedPrecisionOptimizer(lambda p: torch.optim.AdamW(p, lr=args.lr), model.parameters())
    iteration = 0
    if file is not None:
        iteration = load_checkpoint(model, optimizer, file, args.finetune)
    return model, optimizer, iteration


def train(model, optimizer, iteration, iterations, target, generator):
    losses = []
    for _ in range(iteration, iterations):
        x = torch.randn(64, 8, generator=generator)
        loss = (model(x.to(torch.bfloat16)).float() - target(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    pretraining = SimpleNamespace(lr=1e-2, finetune=False)
    model, optimizer, start = setup_model_and_optimizer(pretraining)
    train(model, optimizer, start, 200, lambda x: x[:, 0] + x[:, 1] * x[:, 2], generator)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 200}, file)
    file.seek(0)

    args = SimpleNamespace(lr=1e-4, finetune=True)
    model, optimizer, start = setup_model_and_optimizer(args, file)
    losses = train(model, optimizer, start, 20, lambda x: x[:, 0] + x[:, 1] * x[:, 2] + 0.1, generator)
    print("fine-tuning:", " ".join(f"{value:.3f}" for value in losses[:8]))
    return losses


if __name__ == "__main__":
    main()
