"""Embedding classifier with center loss: one optimizer for the network, one for the centers."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {"seed": 7, "epochs": 8, "batch_size": 32, "lr_model": 0.02, "lr_cent": 0.5, "weight_cent": 0.02, "classes": 6}


class CenterLoss(nn.Module):
    def __init__(self, classes, dim):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, dim))

    def forward(self, features, labels):
        return (features - self.centers[labels]).square().sum(1).mean()


class Net(nn.Module):
    def __init__(self, classes, dim=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, dim))
        self.classifier = nn.Linear(dim, classes)

    def forward(self, x):
        features = self.trunk(x)
        return features, self.classifier(features)


def make_data(n, seed, classes):
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, 24, generator=torch.Generator().manual_seed(0))
    y = torch.randint(classes, (n,), generator=g)
    return means[y] + 1.2 * torch.randn(n, 24, generator=g), y


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Net(cfg["classes"])
        self.center_loss = CenterLoss(cfg["classes"], 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg["lr_model"], momentum=0.9)
        self.optimizer_cent = torch.optim.SGD(self.center_loss.parameters(), lr=cfg["lr_cent"])
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [5], 0.2)

    def step(self, x, y):
        features, logits = self.model(x)
        xent = F.cross_entropy(logits, y)
        cent = self.center_loss(features, y) * self.cfg["weight_cent"]
        self.optimizer.zero_grad()
        self.optimizer_cent.zero_grad()
        (xent + cent).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        for param in self.center_loss.parameters():
            param.grad.data *= 1.0 / self.cfg["weight_cent"]
        self.optimizer_cent.step()
        return xent.detach(), cent.detach()

    def fit(self):
        train, val = make_data(384, 1, self.cfg["classes"]), make_data(192, 2, self.cfg["classes"])
        for epoch in range(self.cfg["epochs"]):
            self.model.train()
            log = []
            for idx in torch.randperm(len(train[0])).split(self.cfg["batch_size"]):
                log.append(torch.stack(self.step(train[0][idx], train[1][idx])))
            self.scheduler.step()
            xent, cent = torch.stack(log).mean(0).tolist()
            acc = self.evaluate(val)
            if epoch % 2 == 1:
                print(f"epoch {epoch} xent {xent:.4f} cent {cent:.4f} acc {acc:.3f}")
        return acc

    @torch.no_grad()
    def evaluate(self, data):
        self.model.eval()
        return (self.model(data[0])[1].argmax(1) == data[1]).float().mean().item()


def main(cfg=CFG):
    torch.manual_seed(cfg["seed"])
    return Trainer(cfg).fit()


if __name__ == "__main__":
    main()
