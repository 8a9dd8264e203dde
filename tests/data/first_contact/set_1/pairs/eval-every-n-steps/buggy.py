"""Text classifier trained with validation every few hundred updates and best checkpoint kept on disk."""
import os
import tempfile
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "seed": 17,
    "vocab": 60,
    "classes": 3,
    "embed": 24,
    "hidden": 32,
    "dropout": 0.5,
    "epochs": 4,
    "batch_size": 16,
    "lr": 4e-3,
    "validation_freq": 6,
    "keep_last": 20,
}


class AttentivePool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, 1)

    def forward(self, x):
        weights = self.query(x).softmax(1)
        return (weights * x).sum(1)


class TextClassifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg["vocab"], cfg["embed"])
        self.embed_drop = nn.Dropout(cfg["dropout"])
        self.gru = nn.GRU(cfg["embed"], cfg["hidden"], batch_first=True, bidirectional=True)
        self.pool = AttentivePool(2 * cfg["hidden"])
        self.out = nn.Sequential(nn.Dropout(cfg["dropout"]), nn.Linear(2 * cfg["hidden"], cfg["classes"]))

    def forward(self, tokens):
        states, _ = self.gru(self.embed_drop(self.embed(tokens)))
        return self.out(self.pool(states))


def make_split(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(cfg["classes"], (n,), generator=g)
    x = torch.randint(cfg["vocab"], (n, 14), generator=g)
    for row in range(n):
        places = torch.randperm(14, generator=g)[:3]
        x[row, places] = y[row] * 8 + torch.randint(8, (3,), generator=g)
    flip = torch.rand(n, generator=g) < 0.1
    y[flip] = torch.randint(cfg["classes"], (int(flip.sum()),), generator=g)
    return x, y


class TrainManager:
    def __init__(self, cfg, model_dir):
        self.cfg = cfg
        self.model = TextClassifier(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg["lr"])
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=3, factor=0.5)
        self.train_set = make_split(cfg, 320, 1)
        self.dev_set = make_split(cfg, 160, 2)
        self.model_dir = model_dir
        self.steps = 0
        self.best = float("inf")
        self.recent = deque(maxlen=cfg["keep_last"])
        self.norms = []

    def save_best(self):
        torch.save(self.model.state_dict(), os.path.join(self.model_dir, "best.ckpt"))

    def load_best(self):
        self.model.load_state_dict(torch.load(os.path.join(self.model_dir, "best.ckpt"), weights_only=True))

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.dev_set
        logits = self.model(x)
        return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.norms.append(nn.utils.clip_grad_norm_(self.model.parameters(), 5.0).item())
        self.optimizer.step()
        self.steps += 1
        return loss.item()

    def train_and_validate(self):
        x, y = self.train_set
        for epoch in range(self.cfg["epochs"]):
            self.model.train()
            for idx in torch.randperm(len(x)).split(self.cfg["batch_size"]):
                self.recent.append(self.train_step(x[idx], y[idx]))
                if self.steps % self.cfg["validation_freq"] == 0:
                    dev_loss, dev_acc = self.validate()
                    self.scheduler.step(dev_loss)
                    if dev_loss < self.best:
                        self.best = dev_loss
                        self.save_best()
            print(f"epoch {epoch} train {sum(self.recent) / len(self.recent):.4f} dev {dev_loss:.4f} acc {dev_acc:.3f}")
        self.load_best()
        return self.validate()


def main(cfg=CONFIG):
    torch.manual_seed(cfg["seed"])
    with tempfile.TemporaryDirectory() as folder:
        manager = TrainManager(cfg, folder)
        final = manager.train_and_validate()
    print(f"best checkpoint: loss {final[0]:.4f} acc {final[1]:.3f}")
    return {"dev": final, "train_loss": sum(manager.recent) / len(manager.recent), "manager": manager}


if __name__ == "__main__":
    main()
