"""A Glow-like flow on 2-D data, trained in two sessions with a checkpoint between them."""
import math
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class FlowConfig:
    dim: int = 4
    n_blocks: int = 4
    hidden: int = 32
    batch_size: int = 16
    lr: float = 3e-3
    session_steps: int = 150
    seed: int = 6


class ActNorm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(features))
        self.shift = nn.Parameter(torch.zeros(features))
        self.initialized = False

    def _initialize(self, inputs):
        with torch.no_grad():
            std, mean = inputs.std(0), inputs.mean(0)
            self.log_scale.data.copy_(-torch.log(std + 1e-6))
            self.shift.data.copy_(-mean / (std + 1e-6))
        self.initialized = True

    def forward(self, inputs):
        if self.training and not self.initialized:
            self._initialize(inputs)
        out = self.log_scale.exp() * inputs + self.shift
        return out, self.log_scale.sum().expand(len(inputs))


class Coupling(nn.Module):
    def __init__(self, dim, hidden, flip):
        super().__init__()
        self.flip, self.half = flip, dim // 2
        self.net = nn.Sequential(nn.Linear(self.half, hidden), nn.Tanh(), nn.Linear(hidden, 2 * self.half))
        nn.init.zeros_(self.net[-1].weight), nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        log_s, t = self.net(a).chunk(2, 1)
        log_s = torch.tanh(log_s)
        b = b * log_s.exp() + t
        out = torch.cat([b, a] if self.flip else [a, b], 1)
        return out, log_s.sum(1)


class Flow(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        layers = []
        for i in range(cfg.n_blocks):
            layers += [ActNorm(cfg.dim), Coupling(cfg.dim, cfg.hidden, flip=bool(i % 2))]
        self.layers = nn.ModuleList(layers)

    def log_prob(self, x):
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return total - 0.5 * (x ** 2).sum(1) - 0.5 * x.size(1) * math.log(2 * math.pi)


def make_batch(n, dim, gen):
    z = torch.randn(n, dim, generator=gen)
    x = z.clone()
    x[:, 1] = 0.5 * z[:, 1] + z[:, 0] ** 2
    x[:, 3] = z[:, 3] * torch.exp(0.5 * z[:, 2]) + 3.0
    return x


class Session:
    def __init__(self, cfg, path):
        self.cfg, self.path = cfg, path
        self.model = Flow(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.step = 0
        if os.path.exists(path):
            state = torch.load(path, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]
        self.loaded = [p.detach().clone() for p in self.model.parameters()]

    def save(self):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step},
                   self.path)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        nll = -self.model.log_prob(make_batch(500, self.cfg.dim, torch.Generator().manual_seed(77))).mean().item()
        self.model.train()
        return nll

    def run(self, gen):
        self.model.train()
        for i in range(self.cfg.session_steps):
            loss = -self.model.log_prob(make_batch(self.cfg.batch_size, self.cfg.dim, gen)).mean()
            if i == 0:
                self.jump = sum((a - b).norm().item() for a, b in zip(self.loaded, self.model.parameters()))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
            self.step += 1
            if self.step % 100 == 0:
                print(f"step {self.step} nll {loss.item():.3f} val {self.validate():.3f}")
        self.save()


def main():
    cfg = FlowConfig()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "flow.pt")
        Session(cfg, path).run(gen)
        second = Session(cfg, path)
        before = second.validate()
        second.run(gen)
    result = {"val_at_resume": round(before, 3), "val_end": round(second.validate(), 3),
              "params_changed_before_first_step": round(second.jump, 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
