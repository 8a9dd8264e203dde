"""Two-head regression/classification on a shared trunk, with learned homoscedastic loss weights."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    n_samples: int = 512
    in_dim: int = 12
    hidden: int = 32
    n_ids: int = 6
    batch_size: int = 64
    epochs: int = 6
    lr: float = 5e-3
    seed: int = 3


class SharedTrunk(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(cfg.in_dim, cfg.hidden), nn.ReLU(),
            nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(),
        )
        self.box = nn.Linear(cfg.hidden, 2)
        self.ident = nn.Linear(cfg.hidden, cfg.n_ids)

    def forward(self, x):
        h = self.body(x)
        return {"box": self.box(h), "id": self.ident(h)}


class TrackLoss(nn.Module):
    """L = 1/2 * (exp(-s_d) * L_box + exp(-s_i) * L_id + s_d + s_i)"""

    def __init__(self):
        super().__init__()
        self.s_det = nn.Parameter(-1.85 * torch.ones(1))
        self.s_id = nn.Parameter(-1.05 * torch.ones(1))

    def forward(self, out, batch):
        box = F.smooth_l1_loss(out["box"], batch["box"])
        ident = F.cross_entropy(out["id"], batch["id"])
        loss = torch.exp(-self.s_det) * box + torch.exp(-self.s_id) * ident + (self.s_det + self.s_id)
        loss = 0.5 * loss.squeeze()
        return loss, {"loss": loss.item(), "box": box.item(), "id": ident.item()}


class ModelWithLoss(nn.Module):
    def __init__(self, model, loss):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch):
        return self.loss(self.model(batch["x"]), batch)


class BaseTrainer:
    def __init__(self, cfg, model, optimizer):
        self.cfg = cfg
        self.optimizer = optimizer
        self.criterion = TrackLoss()
        self.model_with_loss = ModelWithLoss(model, self.criterion)
        self.optimizer.add_param_group({"params": self.criterion.parameters()})

    def run_epoch(self, batches):
        self.model_with_loss.train()
        totals = {}
        for batch in batches:
            loss, stats = self.model_with_loss(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            for k, v in stats.items():
                totals[k] = totals.get(k, 0.0) + v / len(batches)
        return totals


def make_batches(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    x = torch.randn(cfg.n_samples, cfg.in_dim, generator=g)
    box = x[:, :2] * 0.5 + 0.1 * torch.randn(cfg.n_samples, 2, generator=g)
    proj = torch.randn(cfg.in_dim, cfg.n_ids, generator=g)
    ident = (x @ proj).argmax(1)
    out = []
    for i in range(0, cfg.n_samples, cfg.batch_size):
        s = slice(i, i + cfg.batch_size)
        out.append({"x": x[s], "box": box[s], "id": ident[s]})
    return out


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    batches = make_batches(cfg)
    model = SharedTrunk(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    trainer = BaseTrainer(cfg, model, optimizer)
    for epoch in range(cfg.epochs):
        totals = trainer.run_epoch(batches)
        print(epoch, " ".join(f"{k}={v:.4f}" for k, v in totals.items()))
    return trainer


if __name__ == "__main__":
    main()
