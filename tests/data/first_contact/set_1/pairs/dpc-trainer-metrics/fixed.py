"""Differentiable predictive control: train a neural policy through a rolled out plant model."""
import copy
from collections import defaultdict

import torch
import torch.nn as nn


class Plant(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("A", torch.tensor([[1.0, 0.1], [-0.05, 0.98]]))
        self.register_buffer("B", torch.tensor([[0.0], [0.12]]))

    def forward(self, x, u):
        return x @ self.A.t() + u @ self.B.t() + 0.02 * torch.sin(x)


class Policy(nn.Module):
    def __init__(self, nx=2, nu=1, hidden=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(nx, hidden), nn.GELU(), nn.Linear(hidden, nu))

    def forward(self, x):
        return 3.0 * torch.tanh(self.net(x))


class Problem(nn.Module):
    def __init__(self, plant, policy, horizon=12):
        super().__init__()
        self.plant, self.policy, self.horizon = plant, policy, horizon

    def forward(self, batch):
        x, track, effort, bound = batch["x0"], 0.0, 0.0, 0.0
        for _ in range(self.horizon):
            u = self.policy(x)
            x = self.plant(x, u)
            track = track + x.pow(2).mean()
            effort = effort + u.pow(2).mean()
            bound = bound + torch.relu(x.abs() - 2.0).mean()
        name = batch["name"]
        return {f"{name}_loss": track + 0.01 * effort + 5.0 * bound,
                f"{name}_tracking": track, f"{name}_effort": effort, f"{name}_violation": bound}


class Callback:
    def begin_train(self, trainer):
        pass

    def end_epoch(self, trainer, output):
        pass


class ConsoleLogger(Callback):
    def __init__(self, every):
        self.every = every

    def end_epoch(self, trainer, output):
        if trainer.epoch % self.every == 0:
            print(f"epoch {trainer.epoch}: train {output['mean_train_loss'].item():.4f} dev {output['mean_dev_loss'].item():.4f}")


def mean_metrics(outputs, name):
    merged = defaultdict(list)
    for out in outputs:
        for k, v in out.items():
            merged[f"mean_{k}"].append(v)
    return {k: torch.stack(v).mean() for k, v in merged.items() if name in k}


class Trainer:
    def __init__(self, problem, train_data, dev_data, optimizer, epochs=20, patience=10, callback=None,
                 train_metric="train_loss", eval_metric="mean_dev_loss"):
        self.model, self.optimizer, self.callback = problem, optimizer, callback or Callback()
        self.train_data, self.dev_data = train_data, dev_data
        self.epochs, self.patience = epochs, patience
        self.train_metric, self.eval_metric = train_metric, eval_metric
        self.history = []
        self.best_value, self.best_model, self.bad, self.epoch = float("inf"), None, 0, 0

    def train(self):
        self.callback.begin_train(self)
        for self.epoch in range(self.epochs):
            self.model.train()
            outputs = []
            for batch in self.train_data:
                output = self.model(batch)
                self.optimizer.zero_grad()
                output[self.train_metric].backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 100.0)
                self.optimizer.step()
                outputs.append({k: v.detach() for k, v in output.items()})
            epoch_output = mean_metrics(outputs, "train")
            with torch.no_grad():
                self.model.eval()
                epoch_output.update(mean_metrics([self.model(b) for b in self.dev_data], "dev"))
            self.history.append(epoch_output)
            value = epoch_output[self.eval_metric].item()
            if value < self.best_value:
                self.best_value, self.best_model, self.bad = value, copy.deepcopy(self.model.state_dict()), 0
            else:
                self.bad += 1
            self.callback.end_epoch(self, epoch_output)
            if self.bad > self.patience:
                break
        self.model.load_state_dict(self.best_model)
        return self.best_model


def batches(n, size, name, seed):
    g = torch.Generator().manual_seed(seed)
    return [{"x0": 4 * torch.rand(size, 2, generator=g) - 2, "name": name} for _ in range(n)]


def main():
    torch.manual_seed(0)
    problem = Problem(Plant(), Policy())
    optimizer = torch.optim.AdamW(problem.policy.parameters(), lr=3e-3)
    trainer = Trainer(problem, batches(8, 32, "train", 1), batches(2, 64, "dev", 2), optimizer, callback=ConsoleLogger(5))
    trainer.train()
    return {"best_dev": trainer.best_value, "trainer": trainer}


if __name__ == "__main__":
    main()
