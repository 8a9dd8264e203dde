"""Two-stage fine-tuning: head first, then the last stage of the backbone joins the optimizer."""
import copy

import torch
from torch import nn
from torch.nn import functional as F


class Backbone(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.stage = nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width),
                                   nn.ReLU(inplace=True))

    def forward(self, x):
        return self.stage(self.stem(x)).mean(dim=(2, 3))


class Classifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(8, classes)
        self.frozen_names = ["backbone.stem", "backbone.stage"]
        self.freeze()

    def freeze(self):
        for name in ("backbone.stem", "backbone.stage"):
            module = self.get_submodule(name)
            module.requires_grad_(name not in self.frozen_names)

    def train(self, mode=True):
        super().train(mode)
        for name in self.frozen_names:
            self.get_submodule(name).eval()
        return self

    def forward(self, x):
        if len(self.frozen_names) == 2:
            with torch.no_grad():
                features = self.backbone(x)
        else:
            features = self.backbone(x)
        return self.head(features)


class UnfreezeCallback:
    def __init__(self, epoch, name, lr):
        self.epoch, self.name, self.lr = epoch, name, lr

    def on_epoch_start(self, trainer, epoch):
        if epoch != self.epoch:
            return
        model = trainer.model
        model.frozen_names.remove(self.name)
        model.freeze()
        model.train()
        trainer.optimizer.add_param_group({"params": model.get_submodule(self.name).parameters(), "lr": self.lr})


class BestWeights:
    def __init__(self):
        self.best, self.state = float("inf"), None

    def on_epoch_end(self, trainer, loss):
        if loss < self.best:
            self.best, self.state = loss, copy.deepcopy(trainer.model.state_dict())


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)
        self.unfreeze = UnfreezeCallback(2, "backbone.stage", lr * 0.3)
        self.best = BestWeights()

    @torch.no_grad()
    def validate(self, data):
        was_training = self.model.training
        self.model.eval()
        loss = F.cross_entropy(self.model(data[0]), data[1]).item()
        self.model.train(was_training)
        return loss

    def fit(self, epochs, make_batch, valid):
        self.model.train()
        for epoch in range(epochs):
            self.unfreeze.on_epoch_start(self, epoch)
            for _ in range(15):
                x, y = make_batch(32)
                loss = F.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            value = self.validate(valid)
            self.best.on_epoch_end(self, value)
            print(f"epoch {epoch} train {loss.item():.4f} valid {value:.4f}")
        self.model.load_state_dict(self.best.state)


def textures(n):
    y = torch.randint(0, 3, (n,))
    grid = torch.arange(12.0)
    base = torch.stack([torch.sin(grid * f).outer(torch.cos(grid * f)) for f in (0.5, 1.2, 2.4)])
    return (base[y] + 0.3 * torch.randn(n, 12, 12)).unsqueeze(1), y


def pretrain(backbone):
    probe = nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*backbone.parameters(), *probe.parameters()], lr=1e-2)
    for _ in range(15):
        x, y = textures(32)
        optimizer.zero_grad()
        F.cross_entropy(probe(backbone(x)), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return backbone


def main():
    torch.manual_seed(0)
    trainer = Trainer(Classifier(pretrain(Backbone()), 3), lr=0.1)
    trainer.fit(5, textures, textures(128))
    print(f"restored {trainer.validate(textures(128)):.4f}")


if __name__ == "__main__":
    main()
