"""Blind image quality assessment with a content-aware hyper network (toy features)."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    lr: float = 2e-3
    lr_ratio: float = 5.0
    weight_decay: float = 5e-4
    epochs: int = 9
    batch_size: int = 32
    lr_drop_every: int = 4
    feat_dim: int = 12
    content_dim: int = 10
    target_dim: int = 6
    seed: int = 3


class Backbone(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(cfg.feat_dim, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU())
        self.semantic = nn.Linear(16, cfg.content_dim)
        self.local = nn.Linear(16, cfg.target_dim)

    def forward(self, x):
        h = self.stem(x)
        return torch.relu(self.semantic(h)), torch.sigmoid(self.local(h))


class HyperNet(nn.Module):
    """Writes the weights of the quality regressor from the content of each image."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.res = Backbone(cfg)
        self.fc1w = nn.Linear(cfg.content_dim, cfg.target_dim * cfg.target_dim)
        self.fc1b = nn.Linear(cfg.content_dim, cfg.target_dim)
        self.fc2w = nn.Linear(cfg.content_dim, cfg.target_dim)
        self.fc2b = nn.Linear(cfg.content_dim, 1)

    def forward(self, x):
        content, target_in = self.res(x)
        d = self.cfg.target_dim
        return {
            "target_in": target_in,
            "w1": self.fc1w(content).view(-1, d, d),
            "b1": self.fc1b(content),
            "w2": self.fc2w(content).view(-1, 1, d),
            "b2": self.fc2b(content),
        }


class TargetNet(nn.Module):
    def forward(self, p):
        h = torch.einsum("boi,bi->bo", p["w1"], p["target_in"]) + p["b1"]
        h = torch.sigmoid(h)
        return (torch.einsum("boi,bi->bo", p["w2"], h) + p["b2"]).squeeze(1)


class Solver:
    def __init__(self, cfg, train_loader, test_loader):
        self.cfg = cfg
        self.model_hyper = HyperNet(cfg)
        self.target = TargetNet()
        self.train_loader, self.test_loader = train_loader, test_loader
        self.l1 = nn.L1Loss()
        backbone_ids = set(map(id, self.model_hyper.res.parameters()))
        self.hypernet_params = list(filter(lambda p: id(p) not in backbone_ids, self.model_hyper.parameters()))
        self.lr, self.lr_ratio = cfg.lr, cfg.lr_ratio
        self.solver = self.build_optimizer()

    def build_optimizer(self):
        groups = [
            {"params": self.hypernet_params, "lr": self.lr * self.lr_ratio},
            {"params": self.model_hyper.res.parameters(), "lr": self.lr},
        ]
        return torch.optim.Adam(groups, weight_decay=self.cfg.weight_decay)

    def train(self):
        best = float("inf")
        for epoch in range(self.cfg.epochs):
            self.model_hyper.train()
            total = 0.0
            for x, y in self.train_loader:
                self.model_hyper.zero_grad()
                pred = self.target(self.model_hyper(x))
                loss = self.l1(pred, y)
                loss.backward()
                self.solver.step()
                total += loss.item()
            test = self.test()
            best = min(best, test)
            if epoch % 2 == 0:
                print(f"epoch {epoch} train {total / len(self.train_loader):.4f} test {test:.4f}")
            self.lr = self.cfg.lr / 10 ** ((epoch + 1) // self.cfg.lr_drop_every)
            if epoch > 5:
                self.lr_ratio = 1.0
            self.solver = self.build_optimizer()
        return best

    @torch.no_grad()
    def test(self):
        self.model_hyper.eval()
        errs = [self.l1(self.target(self.model_hyper(x)), y).item() for x, y in self.test_loader]
        return sum(errs) / len(errs)


def make_data(cfg, n):
    x = torch.randn(n, cfg.feat_dim)
    y = torch.tanh(x[:, :4].sum(1)) * x[:, 4] + 0.5 * x[:, 5]
    return TensorDataset(x, y)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    train = DataLoader(make_data(cfg, 512), cfg.batch_size, shuffle=True)
    test = DataLoader(make_data(cfg, 256), 64)
    solver = Solver(cfg, train, test)
    best = solver.train()
    moved = sum(len(g["params"]) for g in solver.solver.param_groups)
    return {"best_test_l1": best, "params_in_optimizer": moved}


if __name__ == "__main__":
    main()
