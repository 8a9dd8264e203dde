"""Matrix factorisation with side features for ratings, early stopping on a held-out set."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Settings:
    users: int = 60
    items: int = 40
    factors: int = 16
    ratings: int = 2000
    batch_size: int = 64
    max_epochs: int = 30
    patience: int = 8
    lr: float = 1e-2
    seed: int = 6


class RatingData:
    def __init__(self, cfg):
        gen = torch.Generator().manual_seed(cfg.seed)
        u = torch.randn(cfg.users, 2, generator=gen)
        v = torch.randn(cfg.items, 2, generator=gen)
        self.user = torch.randint(0, cfg.users, (cfg.ratings,), generator=gen)
        self.item = torch.randint(0, cfg.items, (cfg.ratings,), generator=gen)
        noise = 1.0 * torch.randn(cfg.ratings, generator=gen)
        self.rating = 3 + (u[self.user] * v[self.item]).sum(1) + noise
        order = torch.randperm(cfg.ratings, generator=gen)
        n = cfg.ratings
        self.splits = {"train": order[:n // 2], "valid": order[n // 2:3 * n // 4], "test": order[3 * n // 4:]}

    def batches(self, split, batch_size, gen=None):
        index = self.splits[split]
        if gen is not None:
            index = index[torch.randperm(len(index), generator=gen)]
        for part in index.split(batch_size):
            yield self.user[part], self.item[part], self.rating[part]


class FactorModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.users, cfg.factors)
        self.item = nn.Embedding(cfg.items, cfg.factors)
        self.user_bias = nn.Embedding(cfg.users, 1)
        self.item_bias = nn.Embedding(cfg.items, 1)
        self.mean = nn.Parameter(torch.tensor(3.0))
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, user, item):
        dot = (self.user(user) * self.item(item)).sum(-1)
        return self.mean + dot + self.user_bias(user).squeeze(-1) + self.item_bias(item).squeeze(-1)


class Trainer:
    def __init__(self, cfg, data):
        self.cfg, self.data = cfg, data
        torch.manual_seed(cfg.seed)
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.model = FactorModel(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self._best_metric, self._best_model, self._bad_epochs = None, None, 0

    def _train_epoch(self):
        self.model.train()
        for user, item, rating in self.data.batches("train", self.cfg.batch_size, self.gen):
            loss = F.mse_loss(self.model(user, item), rating)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def _score(self, split):
        self.model.eval()
        errors = [F.mse_loss(self.model(u, i), r, reduction="sum")
                  for u, i, r in self.data.batches(split, self.cfg.batch_size)]
        return sum(errors).item() / len(self.data.splits[split])

    def _eval_step(self):
        val_metric = self._score("valid")
        if self._best_metric is None or val_metric < self._best_metric:
            self._best_metric, self._bad_epochs = val_metric, 0
            self._best_model = {k: t.detach().cpu() for k, t in self.model.state_dict().items()}
        else:
            self._bad_epochs += 1
        return val_metric

    def run(self):
        for epoch in range(self.cfg.max_epochs):
            train_loss = self._train_epoch()
            val_metric = self._eval_step()
            if epoch % 4 == 0:
                print(f"epoch {epoch} train {train_loss:.4f} valid {val_metric:.4f}")
            if self._bad_epochs >= self.cfg.patience:
                break
        self.model.load_state_dict(self._best_model)
        return {"best_valid": self._best_metric, "valid": self._score("valid"), "test": self._score("test")}


def main():
    cfg = Settings()
    result = Trainer(cfg, RatingData(cfg)).run()
    print(f"best valid {result['best_valid']:.4f} test {result['test']:.4f}")
    return result


if __name__ == "__main__":
    main()
