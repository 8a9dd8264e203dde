"""Training with simulated 8-bit activations; a small trainer with callbacks."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class FakeQuant(nn.Module):
    """Moving-average range, affine quantisation with a straight-through gradient."""

    def __init__(self, bits=4, momentum=0.1):
        super().__init__()
        self.levels = 2 ** bits - 1
        self.momentum = momentum
        self.observer_enabled = True
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    @torch.no_grad()
    def observe(self, x):
        low, high = x.min(), x.max()
        if torch.isinf(self.low):
            self.low.copy_(low)
            self.high.copy_(high)
        else:
            self.low.lerp_(low, self.momentum)
            self.high.lerp_(high, self.momentum)

    def forward(self, x):
        if self.observer_enabled:
            self.observe(x.detach())
        scale = (self.high - self.low).clamp_min(1e-6) / self.levels
        q = ((x - self.low) / scale).round().clamp(0, self.levels) * scale + self.low
        inside = ((x >= self.low) & (x <= self.high)).to(x.dtype)
        return x * inside + (q - x * inside).detach()


class QuantMLP(nn.Module):
    def __init__(self, n_in=8, hidden=32, n_out=3):
        super().__init__()
        self.q_in, self.q1, self.q2 = FakeQuant(), FakeQuant(), FakeQuant()
        self.fc1 = nn.Linear(n_in, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, n_out)

    def forward(self, x):
        x = self.q1(F.relu(self.fc1(self.q_in(x))))
        x = self.q2(F.relu(self.fc2(x)))
        return self.fc3(x)


class Callback:
    def on_fit_start(self, trainer, model): ...
    def on_validation_start(self, trainer, model): ...
    def on_validation_end(self, trainer, model): ...
    def on_fit_end(self, trainer, model): ...


class QuantizationAwareTraining(Callback):
    """Turns the ranges on for the fit and freezes them after it."""

    def _observers(self, model, flag):
        for m in model.modules():
            if isinstance(m, FakeQuant):
                m.observer_enabled = flag

    def on_fit_start(self, trainer, model):
        self._observers(model, True)

    def on_validation_start(self, trainer, model):
        self._observers(model, False)

    def on_validation_end(self, trainer, model):
        self._observers(model, True)

    def on_fit_end(self, trainer, model):
        self._observers(model, False)


class Trainer:
    def __init__(self, max_epochs, callbacks=()):
        self.max_epochs = max_epochs
        self.callbacks = list(callbacks)

    def call(self, hook, model):
        for cb in self.callbacks:
            getattr(cb, hook)(self, model)

    def validate(self, model, batches):
        self.call("on_validation_start", model)
        model.eval()
        with torch.no_grad():
            loss = sum(F.cross_entropy(model(x), y).item() for x, y in batches) / len(batches)
        model.train()
        self.call("on_validation_end", model)
        return loss

    def fit(self, model, train_batches, val_batches, lr=1e-2):
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.call("on_fit_start", model)
        model.train()
        history = []
        for _ in range(self.max_epochs):
            for x, y in train_batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            history.append(self.validate(model, val_batches))
        self.call("on_fit_end", model)
        return history


def make_batches(n, seed, spread=1.0, size=32):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g) * spread
    y = (x[:, :3] - x[:, 3:6]).argmax(1)
    return [(x[i:i + size], y[i:i + size]) for i in range(0, n, size)]


def main():
    torch.manual_seed(0)
    model = QuantMLP()
    trainer = Trainer(max_epochs=6, callbacks=[QuantizationAwareTraining()])
    history = trainer.fit(model, make_batches(256, 1), make_batches(256, 2, spread=3.0))
    print("validation loss:", [round(v, 3) for v in history])
    print("range of the input:", round(model.q_in.low.item(), 2), round(model.q_in.high.item(), 2))
    return model, history


if __name__ == "__main__":
    main()
