"""LSTM forecaster for a noisy seasonal series, with early stopping on the validation loss."""
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class Config:
    seed: int = 3
    window: int = 24
    hidden: int = 48
    epochs: int = 60
    patience: int = 12
    lr: float = 8e-3
    batch_size: int = 16


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, num_layers=2, batch_first=True)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.readout(out[:, -1])


@dataclass
class EarlyStopping:
    patience: int
    min_delta: float = 1e-4
    best_score: float = float("inf")
    best_state: dict = field(default_factory=dict)
    best_epoch: int = -1
    counter: int = 0

    def step(self, score, model, epoch):
        if score < self.best_score - self.min_delta:
            self.best_score = score
            self.best_epoch = epoch
            self.best_state = {k: v.clone() for k, v in model.state_dict().items()}
            self.counter = 0
        else:
            self.counter += 1
        return self.counter >= self.patience

    def restore(self, model):
        model.load_state_dict(self.best_state)


def make_series(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(n, dtype=torch.float32)
    return torch.sin(t / 4) + 0.4 * torch.sin(t / 1.7) + 0.5 * torch.randn(n, generator=g)


def make_windows(series, window):
    chunks = series.unfold(0, window + 1, 1)
    return chunks[:, :-1].unsqueeze(-1), chunks[:, -1:]


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Forecaster(cfg.hidden)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.criterion = nn.MSELoss()
        self.stopper = EarlyStopping(cfg.patience)
        self.train_x, self.train_y = make_windows(make_series(120, 1), cfg.window)
        self.val_x, self.val_y = make_windows(make_series(200, 2), cfg.window)

    def train_epoch(self):
        self.model.train()
        order = torch.randperm(len(self.train_x))
        total = 0.0
        for idx in order.split(self.cfg.batch_size):
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(self.train_x[idx]), self.train_y[idx])
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            total += loss.item() * len(idx)
        return total / len(self.train_x)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        return self.criterion(self.model(self.val_x), self.val_y).item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            train_loss = self.train_epoch()
            val_loss = self.evaluate()
            if epoch % 5 == 0:
                print(f"epoch {epoch} train {train_loss:.4f} val {val_loss:.4f}")
            if self.stopper.step(val_loss, self.model, epoch):
                print(f"early stop at epoch {epoch}, best epoch {self.stopper.best_epoch}")
                break
        self.stopper.restore(self.model)
        return self.evaluate()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    final = trainer.fit()
    print(f"best val {trainer.stopper.best_score:.4f}, restored model val {final:.4f}")
    return {"best": trainer.stopper.best_score, "restored": final}


if __name__ == "__main__":
    main()
