"""One-class grid detector, trained with a nominal batch size larger than the loader's."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Hyp:
    epochs: int = 8
    batch: int = 4
    nbs: int = 16
    images: int = 44
    lr0: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_iters: int = 8
    box_gain: float = 2.0
    seed: int = 5


class GridDetector(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.SiLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.SiLU(),
        )
        self.detect = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        return self.detect(self.backbone(x))


class DetectionDataset:
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.images, self.obj, self.off = [], [], []
        for _ in range(n):
            cy, cx = (torch.rand(2, generator=gen) * 15).tolist()
            yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
            img = torch.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / 4) + 0.1 * torch.randn(16, 16, generator=gen)
            obj, off = torch.zeros(4, 4), torch.zeros(2, 4, 4)
            gy, gx = int(cy // 4), int(cx // 4)
            obj[gy, gx] = 1
            off[:, gy, gx] = torch.tensor([cy / 4 - gy, cx / 4 - gx])
            self.images.append(img[None])
            self.obj.append(obj)
            self.off.append(off)

    def loader(self, batch):
        for i in range(0, len(self.images), batch):
            s = slice(i, i + batch)
            yield torch.stack(self.images[s]), torch.stack(self.obj[s]), torch.stack(self.off[s])

    def num_batches(self, batch):
        return (len(self.images) + batch - 1) // batch


def detection_loss(pred, obj, off, gain):
    lobj = F.binary_cross_entropy_with_logits(pred[:, 0], obj)
    lbox = (F.mse_loss(pred[:, 1:].sigmoid(), off, reduction="none") * obj[:, None]).sum() / obj.sum()
    return lobj + gain * lbox, torch.stack([lobj, lbox]).detach()


class Trainer:
    def __init__(self, hyp):
        self.hyp = hyp
        torch.manual_seed(hyp.seed)
        self.model = GridDetector()
        self.data = DetectionDataset(hyp.images, hyp.seed)
        self.accumulate = max(round(hyp.nbs / hyp.batch), 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=hyp.lr0, momentum=hyp.momentum,
                                         nesterov=True, weight_decay=hyp.weight_decay)
        self.lf = lambda e: (1 - e / hyp.epochs) * 0.9 + 0.1
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.lf)

    def optimizer_step(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self):
        nb = self.data.num_batches(self.hyp.batch)
        last_opt_step = -1
        for epoch in range(self.hyp.epochs):
            self.model.train()
            self.optimizer.zero_grad()
            tloss = torch.zeros(2)
            for i, (img, obj, off) in enumerate(self.data.loader(self.hyp.batch)):
                ni = i + nb * epoch
                if ni <= self.hyp.warmup_iters:
                    for g in self.optimizer.param_groups:
                        g["lr"] = self.hyp.lr0 * self.lf(epoch) * (ni + 1) / (self.hyp.warmup_iters + 1)
                loss, items = detection_loss(self.model(img), obj, off, self.hyp.box_gain)
                (loss * img.size(0)).backward()
                if ni - last_opt_step >= self.accumulate:
                    self.optimizer_step()
                    last_opt_step = ni
                tloss = (tloss * i + items) / (i + 1)
            if epoch > 0:
                self.scheduler.step()
            print(f"epoch {epoch} obj {tloss[0]:.4f} box {tloss[1]:.4f}")
        return {"loss": tloss.sum().item()}


def main():
    return Trainer(Hyp()).train()


if __name__ == "__main__":
    main()
