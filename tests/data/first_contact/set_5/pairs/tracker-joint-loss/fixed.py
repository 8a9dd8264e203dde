"""Joint detection and re-identification on toy frames: one backbone, two heads, weighted automatically."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Options:
    frames: int = 96
    identities: int = 6
    batch: int = 16
    epochs: int = 6
    lr: float = 3e-3
    seed: int = 3


class Backbone(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )

    def forward(self, x):
        return self.body(x)


class Tracker(nn.Module):
    def __init__(self, identities, width=12):
        super().__init__()
        self.backbone = Backbone(width)
        self.heatmap = nn.Conv2d(width, 1, 1)
        self.embed = nn.Linear(width, 16)
        self.classify = nn.Linear(16, identities)

    def forward(self, x):
        feats = self.backbone(x)
        emb = F.normalize(self.embed(feats.mean(dim=(2, 3))), dim=1)
        return {"hm": self.heatmap(feats), "id": self.classify(4.0 * emb)}


class MotLoss(nn.Module):
    """Balances the two tasks by their (learnt) homoscedastic uncertainty."""

    def __init__(self):
        super().__init__()
        self.s_det = nn.Parameter(-1.85 * torch.ones(1))
        self.s_id = nn.Parameter(-1.05 * torch.ones(1))
        self.id_criterion = nn.CrossEntropyLoss()

    def forward(self, out, batch):
        hm_loss = F.binary_cross_entropy_with_logits(out["hm"], batch["hm"])
        id_loss = self.id_criterion(out["id"], batch["ids"])
        loss = torch.exp(-self.s_det) * hm_loss + torch.exp(-self.s_id) * id_loss + (self.s_det + self.s_id)
        loss = 0.5 * loss.sum()
        return loss, {"loss": loss.item(), "hm": hm_loss.item(), "id": id_loss.item()}


class MotTrainer:
    def __init__(self, opt, model, optimizer, criterion):
        self.opt = opt
        self.model = model
        self.optimizer = optimizer
        self.criterion = criterion

    def run_epoch(self, data):
        self.model.train()
        order = torch.randperm(len(data["img"]))
        last = {}
        for part in order.split(self.opt.batch):
            batch = {key: value[part] for key, value in data.items()}
            loss, last = self.criterion(self.model(batch["img"]), batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return last


def make_frames(opt):
    ids = torch.arange(opt.frames) % opt.identities
    img = 0.3 * torch.randn(opt.frames, 1, 16, 16)
    hm = torch.zeros(opt.frames, 1, 4, 4)
    for i in range(opt.frames):
        cx, cy = torch.randint(0, 4, (2,)).tolist()
        img[i, 0, 4 * cy:4 * cy + 4, 4 * cx:4 * cx + 4] += 0.5 + 0.5 * ids[i]
        hm[i, 0, cy, cx] = 1.0
    return {"img": img, "hm": hm, "ids": ids}


def main(opt=None):
    opt = opt or Options()
    torch.manual_seed(opt.seed)
    data = make_frames(opt)
    model = Tracker(opt.identities)
    criterion = MotLoss()
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], opt.lr)
    trainer = MotTrainer(opt, model, optimizer, criterion)
    for epoch in range(opt.epochs):
        stats = trainer.run_epoch(data)
        print(epoch, {k: round(v, 4) for k, v in stats.items()})
    return criterion


if __name__ == "__main__":
    main()
