import copy
import math
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainingArguments:
    num_train_epochs: int = 5
    per_step_batch: int = 16
    gradient_accumulation_steps: int = 3
    learning_rate: float = 5e-3
    max_grad_norm: float = 1.0
    ema_decay: float = 0.95
    calibrate: bool = True
    callbacks: list = field(default_factory=list)


class GatedTCN(nn.Module):
    def __init__(self, channels=1, hidden=16, levels=3, horizon=4):
        super().__init__()
        self.inp = nn.Conv1d(channels, hidden, 1)
        self.filters = nn.ModuleList(nn.Conv1d(hidden, 2 * hidden, 2, dilation=2**k) for k in range(levels))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(levels))
        self.out = nn.Linear(hidden, 2 * horizon)

    def forward(self, x):
        h = self.inp(x.transpose(1, 2))
        for conv, norm in zip(self.filters, self.norms):
            a, b = conv(F.pad(h, (conv.dilation[0], 0))).chunk(2, 1)
            h = h + norm(torch.tanh(a) * torch.sigmoid(b))
        mean, log_scale = self.out(h[:, :, -1]).chunk(2, 1)
        return mean, log_scale.clamp(-4, 4)


def gaussian_nll(pred, y):
    mean, log_scale = pred
    return (0.5 * ((y - mean) / log_scale.exp()).pow(2) + log_scale).mean(1).sum()


class WeightAverage:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)
        for s, b in zip(self.shadow.buffers(), model.buffers()):
            s.copy_(b)

    @contextmanager
    def applied_to(self, model):
        backup = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(self.shadow.state_dict())
        try:
            yield model
        finally:
            model.load_state_dict(backup)


class Trainer:
    def __init__(self, model, args, train, test):
        self.model, self.args = model, args
        self.train_set, self.test_set = train, test
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
        per_epoch = math.ceil(math.ceil(len(train[0]) / args.per_step_batch) / args.gradient_accumulation_steps)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, args.learning_rate, total_steps=per_epoch * args.num_train_epochs
        )
        self.average = WeightAverage(model, args.ema_decay)

    def training_windows(self):
        batches = list(torch.randperm(len(self.train_set[0])).split(self.args.per_step_batch))
        k = self.args.gradient_accumulation_steps
        for i in range(0, len(batches), k):
            yield batches[i : i + k]

    def optimizer_step(self, window):
        x, y = self.train_set
        n = sum(len(idx) for idx in window)
        total = 0.0
        for idx in window:
            loss = gaussian_nll(self.model(x[idx]), y[idx]) / n
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.average.update(self.model)
        return total

    @torch.no_grad()
    def evaluate(self):
        with self.average.applied_to(self.model) as model:
            model.eval()
            x, y = self.test_set
            nll = gaussian_nll(model(x), y).item() / len(x)
        self.model.train()
        return nll

    def fit_temperature(self):
        self.model.eval()
        x, y = self.test_set
        with torch.no_grad():
            mean, log_scale = self.model(x)
        shift = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.LBFGS([shift], lr=0.5, max_iter=20)

        def closure():
            optimizer.zero_grad()
            loss = gaussian_nll((mean, log_scale + shift), y) / len(x)
            loss.backward()
            return loss

        optimizer.step(closure)
        return shift.detach().exp().item()

    def train(self):
        self.model.train()
        for epoch in range(self.args.num_train_epochs):
            losses = [self.optimizer_step(w) for w in self.training_windows()]
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} eval nll {self.evaluate():.4f}")
        self.model.load_state_dict(self.average.shadow.state_dict())
        if self.args.calibrate:
            print(f"scale correction {self.fit_temperature():.3f}")


def series(n, length, horizon, generator):
    t = torch.arange(length + horizon).float()
    freq = 0.1 + 0.3 * torch.rand(n, 1, generator=generator)
    phase = 6.28 * torch.rand(n, 1, generator=generator)
    x = torch.sin(freq * t + phase) + 0.1 * torch.randn(n, length + horizon, generator=generator)
    return x[:, :length].unsqueeze(-1), x[:, length:]


def main():
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(13)
    train, test = series(400, 24, 4, gen), series(100, 24, 4, gen)
    Trainer(GatedTCN(), TrainingArguments(), train, test).train()


if __name__ == "__main__":
    main()
