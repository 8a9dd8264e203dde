"""Report/image matching as supervised retrieval: frozen text encoder, trainable projections."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {
    "seed": 13, "epochs": 14, "batch_size": 16, "lr": 3e-3, "weight_decay": 1e-4,
    "out_dim": 16, "temperature": 0.2, "freeze_layers": True, "vocab": 50,
}


class TextEncoder(nn.Module):
    """Stands for a pretrained language model."""

    def __init__(self, vocab, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.Linear(dim, dim), nn.Tanh())

    def forward(self, tokens, mask):
        h = self.mix(self.embed(tokens)) * mask.unsqueeze(-1)
        return h.sum(1) / mask.sum(1, keepdim=True)


class ImageEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, dim, 3, padding=1), nn.BatchNorm2d(dim), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )

    def forward(self, x):
        return self.net(x)


class MatchingModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.text_model = TextEncoder(cfg["vocab"])
        if cfg["freeze_layers"]:
            for param in self.text_model.parameters():
                param.requires_grad = False
        self.text_l1 = nn.Linear(48, 48)
        self.text_l2 = nn.Linear(48, cfg["out_dim"])
        self.res_model = ImageEncoder()
        self.res_l1 = nn.Linear(128, 48)
        self.res_l2 = nn.Linear(48, cfg["out_dim"])

    def image_encoder(self, images):
        h = self.res_model(images)
        return self.res_l2(F.relu(self.res_l1(h)))

    def text_encoder(self, tokens, mask):
        with torch.no_grad():
            h = self.text_model(tokens, mask)
        h = self.text_l2(F.relu(self.text_l1(h)))
        return h

    def forward(self, images, tokens, mask):
        return self.image_encoder(images), self.text_encoder(tokens, mask)


def matching_loss(zis, zts, temperature):
    logits = F.normalize(zis, dim=-1) @ F.normalize(zts, dim=-1).t() / temperature
    labels = torch.arange(len(zis))
    return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)), logits


def make_pairs(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    findings = torch.randn(20, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    picks = torch.stack([torch.randperm(20, generator=g)[:3] for _ in range(n)])
    images = findings[picks].sum(1) + 0.5 * torch.randn(n, 1, 10, 10, generator=g)
    filler = torch.randint(20, cfg["vocab"], (n, 5), generator=g)
    tokens = torch.cat([picks, filler], 1)
    mask = torch.ones(n, 8)
    mask[torch.rand(n, generator=g) < 0.4, -2:] = 0
    return images, tokens, mask


class Learner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = MatchingModel(cfg)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=cfg["lr"], weight_decay=cfg["weight_decay"]
        )
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=cfg["epochs"])
        self.train_data, self.val_data = make_pairs(cfg, 256, 1), make_pairs(cfg, 64, 2)

    def step(self, batch):
        zis, zts = self.model(*batch)
        return matching_loss(zis, zts, self.cfg["temperature"])

    def train(self):
        for epoch in range(self.cfg["epochs"]):
            self.model.train()
            total, count = 0.0, 0
            for idx in torch.randperm(256).split(self.cfg["batch_size"]):
                self.optimizer.zero_grad()
                loss, _ = self.step([t[idx] for t in self.train_data])
                loss.backward()
                self.optimizer.step()
                total, count = total + loss.item(), count + 1
            self.scheduler.step()
            if epoch % 4 == 1:
                val_loss, top1 = self.validate()
                print(f"epoch {epoch} train {total / count:.4f} val {val_loss:.4f} top1 {top1:.3f}")
        return total / count, *self.validate()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        loss, logits = self.step(self.val_data)
        return loss.item(), (logits.argmax(1) == torch.arange(len(logits))).float().mean().item()


def main(cfg=CFG):
    torch.manual_seed(cfg["seed"])
    learner = Learner(cfg)
    train, val, top1 = learner.train()
    return {"train": train, "val": val, "top1": top1, "model": learner.model}


if __name__ == "__main__":
    main()
