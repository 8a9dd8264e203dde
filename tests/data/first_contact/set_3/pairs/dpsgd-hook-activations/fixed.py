"""DP-SGD with per-sample gradients: forward hooks keep the inputs, backward hooks use them."""
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    d_in: int = 20
    hidden: int = 48
    classes: int = 5
    epochs: int = 6
    batch_size: int = 32
    lr: float = 0.3
    max_grad_norm: float = 1.0
    noise_multiplier: float = 0.2
    seed: int = 9


class GradSampleModule(nn.Module):
    """Wraps a model; every Linear gets .grad_sample on its parameters in backward."""

    def __init__(self, module):
        super().__init__()
        self._module = module
        self.handles = []
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                layer.activations = []
                self.handles.append(layer.register_forward_hook(self.capture_activations))
                self.handles.append(layer.register_full_backward_hook(self.capture_backprops))

    def forward(self, x):
        return self._module(x)

    def capture_activations(self, layer, inputs, output):
        if not layer.training:
            return
        layer.activations.append(inputs[0].detach())

    def capture_backprops(self, layer, grad_input, grad_output):
        a = layer.activations.pop()
        b = grad_output[0].detach() * a.shape[0]
        layer.weight.grad_sample = torch.einsum("no,ni->noi", b, a)
        layer.bias.grad_sample = b

    def stored(self):
        return sum(len(m.activations) for m in self._module.modules() if hasattr(m, "activations"))

    def remove_hooks(self):
        for handle in self.handles:
            handle.remove()


class DPOptimizer:
    def __init__(self, optimizer, cfg):
        self.optimizer = optimizer
        self.cfg = cfg
        self.params = [p for g in optimizer.param_groups for p in g["params"]]

    def zero_grad(self):
        self.optimizer.zero_grad()
        for p in self.params:
            p.grad_sample = None

    @torch.no_grad()
    def step(self):
        flat = [p.grad_sample.flatten(1) for p in self.params]
        norms = torch.stack([f.norm(dim=1) for f in flat]).norm(dim=0)
        factor = (self.cfg.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        n = len(factor)
        for p, f in zip(self.params, flat):
            total = (factor[:, None] * f).sum(0)
            noise = torch.randn_like(total) * self.cfg.noise_multiplier * self.cfg.max_grad_norm
            p.grad = ((total + noise) / n).view_as(p)
        self.optimizer.step()


def evaluate(model, data, batch_size):
    model.eval()
    hits, loss = 0, 0.0
    x, y = data
    with torch.no_grad():
        for i in range(0, len(x), batch_size):
            logits = model(x[i:i + batch_size])
            loss += F.cross_entropy(logits, y[i:i + batch_size], reduction="sum").item()
            hits += (logits.argmax(1) == y[i:i + batch_size]).sum().item()
    return loss / len(x), hits / len(x)


def train_epoch(model, optimizer, data, cfg):
    model.train()
    x, y = data
    perm = torch.randperm(len(x))
    for i in range(0, len(x) - cfg.batch_size + 1, cfg.batch_size):
        idx = perm[i:i + cfg.batch_size]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[idx]), y[idx])
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    cfg = Config()
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    torch.manual_seed(cfg.seed)
    centres = torch.randn(cfg.classes, cfg.d_in)
    y = torch.randint(0, cfg.classes, (1536,))
    x = centres[y] + 1.5 * torch.randn(1536, cfg.d_in)
    train, val = (x[:1024], y[:1024]), (x[1024:], y[1024:])
    net = nn.Sequential(nn.Linear(cfg.d_in, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.classes))
    model = GradSampleModule(net)
    optimizer = DPOptimizer(torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=0.5), cfg)
    kept = []
    for epoch in range(cfg.epochs):
        loss = train_epoch(model, optimizer, train, cfg)
        val_loss, accuracy = evaluate(model, val, cfg.batch_size)
        kept.append(model.stored())
        print(f"epoch {epoch} train {loss:.4f} val {val_loss:.4f} accuracy {accuracy:.3f}")
    bytes_kept = sum(a.numel() * 4 for m in net if hasattr(m, "activations") for a in m.activations)
    model.remove_hooks()
    return {"tensors_kept_first_epoch": kept[0], "tensors_kept_last_epoch": kept[-1], "bytes_kept": bytes_kept}


if __name__ == "__main__":
    main()
