"""Energy-based model with a replay buffer of chains; the network is frozen and in eval mode while it samples."""
import contextlib
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class EBMConfig:
    steps: int = 120
    batch: int = 64
    langevin_steps: int = 15
    step_size: float = 0.1
    noise: float = 0.05
    reinit: float = 0.05
    alpha: float = 0.05
    clip: float = 0.2
    lr: float = 2e-3
    seed: int = 3


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


@contextlib.contextmanager
def frozen(model):
    was_training = model.training
    flags = [p.requires_grad for p in model.parameters()]
    model.eval()
    for p in model.parameters():
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p, flag in zip(model.parameters(), flags):
            p.requires_grad_(flag)
        model.train(was_training)


class Sampler:
    def __init__(self, cfg, size=512):
        self.cfg = cfg
        self.chains = torch.randn(size, 2) * 2

    def sample(self, model):
        idx = torch.randint(0, len(self.chains), (self.cfg.batch,))
        x = self.chains[idx].clone()
        fresh = torch.rand(self.cfg.batch) < self.cfg.reinit
        x[fresh] = 2 * torch.randn(int(fresh.sum()), 2)
        x.requires_grad_(True)
        with frozen(model):
            for _ in range(self.cfg.langevin_steps):
                model(x).sum().backward()
                with torch.no_grad():
                    grad = x.grad.clamp(-self.cfg.clip * 10, self.cfg.clip * 10)
                    x.add_(grad, alpha=-self.cfg.step_size)
                    x.add_(torch.randn_like(x), alpha=self.cfg.noise)
                x.grad.zero_()
        x = x.detach()
        self.chains[idx] = x
        return x


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = Energy()
        self.sampler = Sampler(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr, betas=(0.0, 0.99))
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 40, gamma=0.7)

    def data(self, n):
        side = torch.randint(0, 2, (n, 1)) * 2.0 - 1
        return torch.cat([1.5 * side, torch.zeros(n, 1)], dim=1) + 0.2 * torch.randn(n, 2)

    def step(self):
        positive, negative = self.data(self.cfg.batch), self.sampler.sample(self.model)
        e = self.model(torch.cat([positive, negative]))
        e_pos, e_neg = e.chunk(2)
        contrast = e_pos.mean() - e_neg.mean()
        loss = contrast + self.cfg.alpha * (e_pos.pow(2) + e_neg.pow(2)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return contrast.item()


def main():
    trainer = Trainer(EBMConfig())
    for step in range(trainer.cfg.steps):
        contrast = trainer.step()
        if step % 40 == 39:
            print(f"step {step + 1} contrast {contrast:.3f}")
    trainer.model.eval()
    with torch.no_grad():
        return (trainer.model(2 * torch.randn(256, 2)).mean() - trainer.model(trainer.data(256)).mean()).item()


if __name__ == "__main__":
    main()
