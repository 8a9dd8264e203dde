"""Transfer learning: pretrain a backbone, freeze it, train a new head on shifted images."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = dict(seed=5, pretrain_epochs=4, finetune_epochs=6, batch_size=32, lr=0.02, num_source=6, num_target=3)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )

    def forward(self, x):
        return self.layers(x).flatten(1)


class Classifier(nn.Module):
    def __init__(self, backbone, num_classes):
        super().__init__()
        self.backbone = backbone
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(24 * 4, num_classes)

    def forward(self, x):
        return self.head(self.dropout(self.backbone(x)))

    def freeze_backbone(self):
        for p in self.backbone.parameters():
            p.requires_grad = False
        for m in self.backbone.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()


def make_task(num_classes, n, seed, offset=0.0, gain=1.0):
    g = torch.Generator().manual_seed(seed)
    protos = torch.randn(num_classes, 1, 12, 12, generator=torch.Generator().manual_seed(100 + num_classes))
    y = torch.randint(num_classes, (n,), generator=g)
    x = (protos[y] + 0.9 * torch.randn(n, 1, 12, 12, generator=g)) * gain + offset
    return x, y


def run_epoch(model, optimizer, data, batch_size):
    model.train()
    x, y = data
    total = 0.0
    for idx in torch.randperm(len(x)).split(batch_size):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[idx]), y[idx])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(idx)
    return total / len(x)


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    x, y = data
    return (model(x).argmax(1) == y).float().mean().item()


class Finetuner:
    def __init__(self, backbone, cfg):
        self.cfg = cfg
        self.model = Classifier(backbone, cfg["num_target"])
        self.model.freeze_backbone()
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trainable, lr=cfg["lr"], momentum=0.9)
        self.train_data = make_task(cfg["num_target"], 192, 21, offset=1.5, gain=2.0)
        self.val_data = make_task(cfg["num_target"], 192, 22, offset=1.5, gain=2.0)

    def train_epoch(self):
        self.model.train()
        x, y = self.train_data
        total = 0.0
        for idx in torch.randperm(len(x)).split(self.cfg["batch_size"]):
            loss = F.cross_entropy(self.model(x[idx]), y[idx], label_smoothing=0.05)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(idx)
        return total / len(x)

    def fit(self):
        for epoch in range(self.cfg["finetune_epochs"]):
            loss = self.train_epoch()
            print(f"finetune {epoch} loss {loss:.4f} val acc {accuracy(self.model, self.val_data):.3f}")


def main(cfg=CFG):
    torch.manual_seed(cfg["seed"])
    source = Classifier(Backbone(), cfg["num_source"])
    optimizer = torch.optim.Adam(source.parameters(), lr=2e-3)
    source_train = make_task(cfg["num_source"], 384, 11)
    source_val = make_task(cfg["num_source"], 256, 12)
    for epoch in range(cfg["pretrain_epochs"]):
        print(f"pretrain {epoch} loss {run_epoch(source, optimizer, source_train, cfg['batch_size']):.4f}")
    before = accuracy(source, source_val)
    pretrained = copy.deepcopy(source.backbone.state_dict())

    tuner = Finetuner(source.backbone, cfg)
    tuner.fit()
    after = accuracy(source, source_val)
    print(f"source task with the shared backbone: {before:.3f} before, {after:.3f} after")
    return {"before": before, "after": after, "pretrained": pretrained, "model": tuner.model}


if __name__ == "__main__":
    main()
