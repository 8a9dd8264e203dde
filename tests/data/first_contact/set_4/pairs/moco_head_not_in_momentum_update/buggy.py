"""MoCo v2 style pretraining on synthetic two-view data, with a kNN evaluation."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class MocoConfig:
    dim: int = 16
    queue_size: int = 256
    batch_size: int = 32
    momentum: float = 0.97
    temperature: float = 0.2
    lr: float = 0.06
    epochs: int = 8
    steps_per_epoch: int = 30
    use_mlp: bool = True
    seed: int = 4


class Encoder(nn.Module):
    def __init__(self, in_dim=20, width=48):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_dim, width), nn.BatchNorm1d(width), nn.ReLU(),
                                    nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
        self.num_features = width

    def forward(self, x):
        return self.layers(x)


def projection_head(width, dim):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim))


class Moco(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.encoder_q = Encoder()
        self.head_q = projection_head(self.encoder_q.num_features, cfg.dim) if cfg.use_mlp else nn.Identity()
        self.encoder_k = copy.deepcopy(self.encoder_q)
        self.head_k = copy.deepcopy(self.head_q)
        for p in [*self.encoder_k.parameters(), *self.head_k.parameters()]:
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(cfg.dim, cfg.queue_size), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            em = self.cfg.momentum
            param_k.data = param_k.data * em + param_q.data * (1.0 - em)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        ptr, n = int(self.queue_ptr), keys.size(0)
        self.queue[:, ptr: ptr + n] = keys.T
        self.queue_ptr[0] = (ptr + n) % self.cfg.queue_size

    def forward(self, img_q, img_k):
        q = F.normalize(self.head_q(self.encoder_q(img_q)), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = F.normalize(self.head_k(self.encoder_k(img_k)), dim=1)
        l_pos = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([l_pos, l_neg], dim=1) / self.cfg.temperature
        self._dequeue_and_enqueue(k)
        return logits


class TwoViews:
    def __init__(self, gen, classes=6):
        self.gen = gen
        self.centers = torch.randn(classes, 20, generator=gen)

    def batch(self, n):
        y = torch.randint(0, len(self.centers), (n,), generator=self.gen)
        base = self.centers[y] + 0.6 * torch.randn(n, 20, generator=self.gen)
        views = []
        for _ in range(2):
            keep = (torch.rand(n, 20, generator=self.gen) > 0.2).float()
            views.append((base + 0.3 * torch.randn(n, 20, generator=self.gen)) * keep)
        return views[0], views[1], base, y


@torch.no_grad()
def knn_accuracy(model, data):
    model.eval()
    _, _, train_x, train_y = data.batch(200)
    _, _, test_x, test_y = data.batch(200)
    a, b = F.normalize(model.encoder_q(train_x), dim=1), F.normalize(model.encoder_q(test_x), dim=1)
    pred = train_y[(b @ a.T).topk(5).indices].mode(1).values
    model.train()
    return (pred == test_y).float().mean().item()


def main():
    cfg = MocoConfig()
    torch.manual_seed(cfg.seed)
    data = TwoViews(torch.Generator().manual_seed(cfg.seed))
    model = Moco(cfg)
    head_before = copy.deepcopy(model.head_k.state_dict())
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.epochs)
    for epoch in range(cfg.epochs):
        total = 0.0
        for _ in range(cfg.steps_per_epoch):
            v1, v2, _, _ = data.batch(cfg.batch_size)
            logits = model(v1, v2)
            loss = F.cross_entropy(logits, torch.zeros(len(v1), dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        if epoch % 3 == 0:
            print(f"epoch {epoch} loss {total / cfg.steps_per_epoch:.4f} knn {knn_accuracy(model, data):.3f}")
    moved = sum((v - head_before[k]).norm().item() for k, v in model.head_k.state_dict().items())
    result = {"loss": round(total / cfg.steps_per_epoch, 4), "key_head_moved": round(moved, 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
