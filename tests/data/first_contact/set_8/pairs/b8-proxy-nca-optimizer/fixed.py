"""Metric learning with proxy based losses; the loss is picked by name as in a command line tool."""
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


class EmbeddingNet(nn.Module):
    def __init__(self, in_dim=20, sz_embedding=8):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(in_dim, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.embedding = nn.Linear(32, sz_embedding)

    def forward(self, x):
        return F.normalize(self.embedding(self.backbone(x)), dim=1)


class ProxyAnchor(nn.Module):
    def __init__(self, nb_classes, sz_embed, margin=0.1, alpha=16):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(nb_classes, sz_embed))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")
        self.margin, self.alpha, self.nb_classes = margin, alpha, nb_classes

    def forward(self, x, labels):
        cos = x @ F.normalize(self.proxies, dim=1).t()
        one_hot = F.one_hot(labels, self.nb_classes).bool()
        pos = torch.exp(-self.alpha * (cos - self.margin)).masked_fill(~one_hot, 0.0).sum(0)
        neg = torch.exp(self.alpha * (cos + self.margin)).masked_fill(one_hot, 0.0).sum(0)
        present = one_hot.any(0)
        return torch.log1p(pos)[present].sum() / present.sum() + torch.log1p(neg).mean()


class ProxyNCA(nn.Module):
    def __init__(self, nb_classes, sz_embed, scale=8.0):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(nb_classes, sz_embed) / 8)
        self.scale = scale

    def forward(self, x, labels):
        distance = torch.cdist(x, F.normalize(self.proxies, dim=1)).pow(2)
        return F.cross_entropy(-self.scale * distance, labels)


class PairContrastive(nn.Module):
    def __init__(self, nb_classes, sz_embed, margin=0.5):
        super().__init__()
        self.margin = margin

    def forward(self, x, labels):
        sim = x @ x.t()
        same = labels[:, None] == labels[None]
        off = ~torch.eye(len(x), dtype=torch.bool)
        return (1 - sim[same & off]).mean() + F.relu(sim[~same] - self.margin).mean()


LOSSES = {"Proxy_Anchor": ProxyAnchor, "Proxy_NCA": ProxyNCA, "Contrastive": PairContrastive}


def parse_args(**overrides):
    args = dict(loss="Proxy_NCA", sz_embedding=8, nb_classes=10, lr=3e-3, proxy_lr_mult=10, nb_epochs=12,
                sz_batch=40, warm=1, seed=0)
    args.update(overrides)
    return SimpleNamespace(**args)


def make_data(nb_classes, per_class=30, seed=0):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(nb_classes, 6, generator=g)
    mixing = torch.randn(6, 20, generator=g)
    labels = torch.arange(nb_classes).repeat_interleave(per_class)
    latent = centers[labels] + 0.6 * torch.randn(len(labels), 6, generator=g)
    return latent @ mixing + 0.3 * torch.randn(len(labels), 20, generator=g), labels


def build_optimizer(args, model, criterion):
    param_groups = [
        {"params": model.backbone.parameters(), "lr": args.lr},
        {"params": model.embedding.parameters(), "lr": args.lr},
    ]
    if args.loss in ("Proxy_Anchor", "Proxy_NCA"):
        param_groups.append({"params": criterion.parameters(), "lr": args.lr * args.proxy_lr_mult})
    return torch.optim.AdamW(param_groups, lr=args.lr, weight_decay=1e-4)


@torch.no_grad()
def recall_at_one(model, x, labels):
    model.eval()
    emb = model(x)
    sim = emb @ emb.t()
    sim.fill_diagonal_(-2)
    return (labels[sim.argmax(1)] == labels).float().mean().item()


def train(args):
    torch.manual_seed(args.seed)
    x, labels = make_data(args.nb_classes)
    model = EmbeddingNet(sz_embedding=args.sz_embedding)
    criterion = LOSSES[args.loss](args.nb_classes, args.sz_embedding)
    optimizer = build_optimizer(args, model, criterion)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    losses = []
    for epoch in range(args.nb_epochs):
        model.train()
        frozen = epoch < args.warm
        for p in model.backbone.parameters():
            p.requires_grad_(not frozen)
        for index in torch.randperm(len(x)).split(args.sz_batch):
            loss = criterion(model(x[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 10)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        print(f"epoch {epoch} loss {losses[-1]:.4f} recall@1 {recall_at_one(model, x, labels):.3f}")
    return model, criterion, losses


def main():
    return train(parse_args())


if __name__ == "__main__":
    main()
