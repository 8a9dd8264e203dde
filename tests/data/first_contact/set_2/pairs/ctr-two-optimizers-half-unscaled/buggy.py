"""Click-through-rate model: SGD on the embedding tables, momentum SGD on the dense tower, mixed precision with a GradScaler."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    users: int = 60
    items: int = 80
    dim: int = 8
    batch_size: int = 64
    epochs: int = 3
    lr_sparse: float = 4.0
    lr_dense: float = 0.1
    max_norm: float = 1.0
    loss_scale: float = 2.0 ** 12
    seed: int = 13


class DLRM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.users, cfg.dim)
        self.item = nn.Embedding(cfg.items, cfg.dim)
        self.tower = nn.Sequential(nn.Linear(3 * cfg.dim, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)

    def sparse_parameters(self):
        return [self.user.weight, self.item.weight]

    def dense_parameters(self):
        return self.tower.parameters()

    def forward(self, user, item):
        u, i = self.user(user), self.item(item)
        return self.tower(torch.cat([u, i, u * i], -1)).squeeze(-1)


def clicks(cfg, n, seed):
    world = torch.Generator().manual_seed(0)
    pu, pi = torch.randn(cfg.users, 3, generator=world), torch.randn(cfg.items, 3, generator=world)
    g = torch.Generator().manual_seed(seed)
    user, item = torch.randint(cfg.users, (n,), generator=g), torch.randint(cfg.items, (n,), generator=g)
    p = torch.sigmoid(2 * (pu[user] * pi[item]).sum(-1))
    return TensorDataset(user, item, torch.bernoulli(p, generator=g))


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    pos = labels.sum()
    return ((ranks[labels > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(labels) - pos))).item()


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg, self.model = cfg, DLRM(cfg)
        self.opt_sparse = torch.optim.SGD(self.model.sparse_parameters(), lr=cfg.lr_sparse)
        self.opt_dense = torch.optim.SGD(self.model.dense_parameters(), lr=cfg.lr_dense, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=cfg.loss_scale, growth_interval=10_000)

    def step(self, user, item, label):
        self.opt_sparse.zero_grad()
        self.opt_dense.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logit = self.model(user, item)
        loss = F.binary_cross_entropy_with_logits(logit.float(), label)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt_dense)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_norm)
        self.scaler.step(self.opt_sparse)
        self.scaler.step(self.opt_dense)
        self.scaler.update()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, data):
        self.model.eval()
        user, item, label = data.tensors
        logit = self.model(user, item)
        self.model.train()
        return F.binary_cross_entropy_with_logits(logit, label).item(), auc(logit, label)


def main():
    cfg = Config()
    trainer, held_out = Trainer(cfg), clicks(cfg, 2000, 2)
    loader = DataLoader(clicks(cfg, 6000, 1), cfg.batch_size, shuffle=True, generator=torch.Generator().manual_seed(4))
    for epoch in range(cfg.epochs):
        losses = [trainer.step(*batch) for batch in loader]
        logloss, score = trainer.evaluate(held_out)
        print(f"epoch {epoch} train {sum(losses) / len(losses):.4f} logloss {logloss:.4f} auc {score:.4f}")
    return {"logloss": logloss, "auc": score}


if __name__ == "__main__":
    main()
