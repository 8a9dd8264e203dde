import numpy as np
import torch
from torch import nn, optim


class TaskLoader:
    def __init__(self, seed, grid=32):
        self.rng = np.random.default_rng(seed)
        self.grid = grid

    def _field(self, x):
        k = self.rng.integers(1, 4)
        phase = self.rng.uniform(0, 2 * np.pi)
        trend = self.rng.normal(0, 0.5)
        return np.sin(2 * np.pi * k * x + phase) + trend * x

    def __call__(self, n_context, n_target):
        x = np.sort(self.rng.uniform(0, 1, n_context + n_target))
        y = self._field(x) + self.rng.normal(0, 0.05, x.shape)
        order = self.rng.permutation(len(x))
        c, t = order[:n_context], order[n_context:]
        as_tensor = lambda a: torch.tensor(a, dtype=torch.float32)
        return {
            "X_c": as_tensor(x[c]),
            "Y_c": as_tensor(y[c]),
            "X_t": as_tensor(x[t]),
            "Y_t": as_tensor(y[t]),
        }


class ConvCNP(nn.Module):
    def __init__(self, points=64, channels=24, length_scale=0.03):
        super().__init__()
        self.register_buffer("grid", torch.linspace(-0.1, 1.1, points))
        self.log_scale_in = nn.Parameter(torch.log(torch.tensor(length_scale)))
        self.log_scale_out = nn.Parameter(torch.log(torch.tensor(length_scale)))
        self.cnn = nn.Sequential(
            nn.Conv1d(2, channels, 9, padding=4),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 9, padding=4),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 9, padding=4),
            nn.ReLU(),
            nn.Conv1d(channels, 2, 1),
        )

    def forward(self, task):
        w = torch.exp(-0.5 * ((self.grid[:, None] - task["X_c"]) / self.log_scale_in.exp()) ** 2)
        density = w.sum(dim=-1)
        signal = (w @ task["Y_c"]) / (density + 1e-4)
        h = self.cnn(torch.stack([density, signal])[None]).squeeze(0)
        v = torch.exp(-0.5 * ((task["X_t"][:, None] - self.grid) / self.log_scale_out.exp()) ** 2)
        v = v / (v.sum(dim=-1, keepdim=True) + 1e-6)
        mean, raw = v @ h[0], v @ h[1]
        return mean, 0.02 + nn.functional.softplus(raw)

    def loss_fn(self, task, normalise=True):
        mean, std = self(task)
        nll = -torch.distributions.Normal(mean, std).log_prob(task["Y_t"])
        return nll.mean() if normalise else nll.sum()


def train_epoch(model, tasks, opt, batch_size=None):
    def train_step(batch):
        opt.zero_grad()
        loss = torch.stack([model.loss_fn(task) for task in batch]).mean()
        loss.backward()
        opt.step()
        return loss.detach().item()

    model.train()
    batch_size = batch_size or 1
    order = np.random.permutation(len(tasks))
    losses = []
    for start in range(0, len(tasks), batch_size):
        losses.append(train_step([tasks[i] for i in order[start : start + batch_size]]))
    return losses


@torch.no_grad()
def compute_val_loss(model, tasks):
    model.eval()
    return float(np.mean([model.loss_fn(task).item() for task in tasks]))


def gen_tasks(loader, n):
    return [loader(int(loader.rng.integers(6, 16)), 24) for _ in range(n)]


def main():
    np.random.seed(42)
    torch.manual_seed(42)
    loader = TaskLoader(seed=42)
    model = ConvCNP()
    opt = optim.Adam(model.parameters(), lr=5e-3)
    val_tasks = gen_tasks(TaskLoader(seed=7), 32)
    best = np.inf
    for epoch in range(50):
        train_tasks = gen_tasks(loader, 8)
        batch_losses = train_epoch(model, train_tasks, opt, batch_size=8)
        if epoch % 10 == 9:
            val_loss = compute_val_loss(model, val_tasks)
            best = min(best, val_loss)
            print(f"epoch {epoch + 1} train {np.mean(batch_losses):.4f} val {val_loss:.4f}")
    print(f"best val {best:.4f}")


if __name__ == "__main__":
    main()
