import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {"features": 10, "hidden": 24, "classes": 2, "steps": 120, "batch": 64, "lr": 0.05, "lam": 400.0, "n_fisher": 80}


def make_task(seed, n=512):
    g = torch.Generator().manual_seed(seed)
    direction = torch.randn(CONFIG["features"], generator=g)
    x = torch.randn(n, CONFIG["features"], generator=g)
    y = (x @ direction > 0).long()
    return x, y


class Model(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))
        self.fisher = {}
        self.anchor = {}

    def forward(self, x):
        return self.net(x)

    def compute_fisher(self, x, y, n_samples):
        """Diagonal empirical Fisher of the task that has just been learnt."""
        for name, p in self.named_parameters():
            self.fisher[name] = torch.zeros_like(p)
        picks = torch.randperm(len(x))[:n_samples]
        for i in picks.tolist():
            log_probs = F.log_softmax(self(x[i : i + 1]), dim=1)
            log_likelihood = log_probs[0, y[i]]
            grads = torch.autograd.grad(log_likelihood, list(self.parameters()))
            self._collect(grads, n_samples)

    def _collect(self, grads, n_samples):
        for (name, _), grad in zip(self.named_parameters(), grads):
            torch.add(self.fisher[name], grad.pow(2) / n_samples)

    def star(self):
        self.anchor = {name: p.detach().clone() for name, p in self.named_parameters()}

    def penalty(self):
        if not self.anchor:
            return torch.zeros(())
        terms = []
        for name, p in self.named_parameters():
            terms.append((self.fisher[name] * (p - self.anchor[name]).pow(2)).sum())
        return torch.stack(terms).sum()


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def train_task(model, optimizer, x, y):
    for _ in range(CONFIG["steps"]):
        idx = torch.randint(len(x), (CONFIG["batch"],))
        loss = F.cross_entropy(model(x[idx]), y[idx]) + 0.5 * CONFIG["lam"] * model.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    model = Model(CONFIG["features"], CONFIG["hidden"], CONFIG["classes"])
    optimizer = torch.optim.SGD(model.parameters(), lr=CONFIG["lr"])
    tasks = [make_task(11), make_task(29)]
    results = []
    for x, y in tasks:
        train_task(model, optimizer, x, y)
        model.compute_fisher(x, y, CONFIG["n_fisher"])
        model.star()
        results.append([round(accuracy(model, *t), 3) for t in tasks])
    for row in results:
        print("accuracy by task:", row)
    return {"model": model, "results": results}

if __name__ == "__main__":
    main()
