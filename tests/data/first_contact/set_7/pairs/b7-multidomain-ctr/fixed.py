import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--embed_dim", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--weight_decay", type=float, default=1e-5)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--seed", type=int, default=2024)
    return parser.parse_args()


class FeaturesEmbedding(nn.Module):
    def __init__(self, field_dims, embed_dim):
        super().__init__()
        self.embedding = nn.Embedding(sum(field_dims), embed_dim)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.register_buffer("offsets", torch.tensor([0, *np.cumsum(field_dims)[:-1]]))

    def forward(self, x):
        return self.embedding(x + self.offsets).flatten(1)


class Tower(nn.Module):
    def __init__(self, in_dim, hidden=(32, 16)):
        super().__init__()
        dims = [in_dim, *hidden]
        self.mlp = nn.Sequential(
            *(m for a, b in zip(dims[:-1], dims[1:]) for m in (nn.Linear(a, b), nn.ReLU())), nn.Linear(dims[-1], 1)
        )

    def forward(self, x):
        return self.mlp(x).squeeze(1)


class SharedBottom(nn.Module):
    def __init__(self, field_dims, embed_dim, domains):
        super().__init__()
        self.embedding = FeaturesEmbedding(field_dims, embed_dim)
        width = len(field_dims) * embed_dim
        self.bottom = nn.Sequential(nn.Linear(width, 32), nn.ReLU())
        self.towers = nn.ModuleDict({name: Tower(32) for name in domains})

    def forward(self, x, domain):
        return self.towers[domain](self.bottom(self.embedding(x)))


class DomainLog:
    """Click logs of one domain; the affinities of users and items differ from domain to domain."""

    def __init__(self, name, field_dims, rng, noise):
        self.name, self.rng = name, rng
        self.field_dims = field_dims
        self.noise = noise
        self.factors = [rng.standard_normal((dim, 3)) for dim in field_dims]

    def sample(self, n):
        x = np.stack([self.rng.integers(0, dim, n) for dim in self.field_dims], 1)
        u, i, c = (f[x[:, k]] for k, f in enumerate(self.factors))
        logit = (u * i).sum(1) + 0.5 * (i * c).sum(1) + self.noise * self.rng.standard_normal(n)
        return torch.tensor(x), torch.tensor((logit > 0).astype(np.float32))


class Trainer:
    def __init__(self, model, logs, mix, args):
        self.model, self.logs, self.mix, self.args = model, logs, mix, args
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
        self.rng = np.random.default_rng(args.seed)

    def train_one_step(self):
        domain = self.rng.choice(list(self.logs), p=self.mix)
        x, y = self.logs[domain].sample(self.args.batch_size)
        loss = F.binary_cross_entropy_with_logits(self.model(x, domain), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return domain, loss.item()

    @torch.no_grad()
    def evaluate(self, n=1024):
        self.model.eval()
        scores = {}
        for name, log in self.logs.items():
            x, y = log.sample(n)
            scores[name] = F.binary_cross_entropy_with_logits(self.model(x, name), y).item()
        self.model.train()
        return scores

    def fit(self):
        seen = {name: 0 for name in self.logs}
        for step in range(1, self.args.steps + 1):
            domain, _ = self.train_one_step()
            seen[domain] += 1
            if step % 40 == 0:
                scores = " ".join(f"{k}={v:.4f}" for k, v in self.evaluate().items())
                print(f"step {step} batches {seen} logloss {scores}")


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    field_dims = (30, 40, 6)
    names = ("home", "search", "cart")
    logs = {name: DomainLog(name, field_dims, rng, noise=0.3) for name in names}
    model = SharedBottom(field_dims, args.embed_dim, names)
    Trainer(model, logs, mix=(0.75, 0.2, 0.05), args=args).fit()


if __name__ == "__main__":
    main()
