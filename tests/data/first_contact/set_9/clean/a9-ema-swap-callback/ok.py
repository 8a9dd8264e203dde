import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn


class Callback:
    def on_train_start(self, trainer):
        pass

    def on_step_end(self, trainer):
        pass

    def on_eval_start(self, trainer):
        pass

    def on_eval_end(self, trainer):
        pass


class EMACallback(Callback):
    def __init__(self, decay):
        self.decay = decay
        self.shadow = {}
        self.backup = None

    def on_train_start(self, trainer):
        self.shadow = {k: v.detach().clone() for k, v in trainer.model.state_dict().items()}

    @torch.no_grad()
    def on_step_end(self, trainer):
        decay = min(self.decay, (1 + trainer.step) / (10 + trainer.step))
        for key, value in trainer.model.state_dict().items():
            if value.dtype.is_floating_point:
                self.shadow[key].lerp_(value, 1 - decay)
            else:
                self.shadow[key].copy_(value)

    def on_eval_start(self, trainer):
        self.backup = {k: v.clone() for k, v in trainer.model.state_dict().items()}
        trainer.model.load_state_dict(self.shadow)

    def on_eval_end(self, trainer):
        trainer.model.load_state_dict(self.backup)
        self.backup = None


@contextmanager
def sampling_mode(model, seed):
    was_training = model.training
    model.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with torch.no_grad():
                yield
        finally:
            model.train(was_training)


class Denoiser(nn.Module):
    def __init__(self, dim=2, hidden=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.inp = nn.Linear(dim, hidden)
        self.mid = nn.Sequential(nn.SiLU(), nn.Dropout(0.05), nn.Linear(hidden, hidden))
        self.norm = nn.BatchNorm1d(hidden)
        self.out = nn.Linear(hidden, dim)

    def forward(self, x, t):
        freqs = 2.0 ** torch.arange(4) * math.pi
        emb = torch.cat([(t[:, None] * freqs).sin(), (t[:, None] * freqs).cos()], dim=1)
        h = self.inp(x) + self.time(emb)
        return self.out(F.silu(self.norm(h + self.mid(h))))


class FlowTrainer:
    def __init__(self, model, lr, callbacks, eval_every):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.callbacks = callbacks
        self.eval_every = eval_every
        self.step = 0

    def emit(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def loss(self, x1):
        x0 = torch.randn_like(x1)
        t = torch.rand(len(x1))
        xt = (1 - t[:, None]) * x0 + t[:, None] * x1
        return F.mse_loss(self.model(xt, t), x1 - x0)

    def sample(self, n, steps=12):
        x = torch.randn(n, 2)
        for i in range(steps):
            t = torch.full((n,), i / steps)
            x = x + self.model(x, t) / steps
        return x

    def evaluate(self):
        self.emit("on_eval_start")
        try:
            with sampling_mode(self.model, seed=0):
                radius = self.sample(256).norm(dim=1)
        finally:
            self.emit("on_eval_end")
        return radius.mean().item(), radius.std().item()

    def fit(self, batches, steps):
        self.model.train()
        self.emit("on_train_start")
        running = 0.0
        while self.step < steps:
            loss = self.loss(batches())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            self.emit("on_step_end")
            running += loss.item()
            if self.step % self.eval_every == 0:
                print(self.step, round(running / self.eval_every, 4), [round(v, 3) for v in self.evaluate()])
                running = 0.0


def main():
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(31)

    def circle():
        angle = torch.rand(128, generator=gen) * 2 * math.pi
        points = torch.stack([angle.cos(), angle.sin()], dim=1) * 2
        return points + 0.05 * torch.randn(128, 2, generator=gen)

    trainer = FlowTrainer(Denoiser(), 3e-3, [EMACallback(0.95)], eval_every=60)
    trainer.fit(circle, 240)


if __name__ == "__main__":
    main()
