"""Classifier with weight averaging: the average is swapped in for evaluation and back out for training."""
import contextlib
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {"seed": 5, "epochs": 6, "batch_size": 32, "lr": 0.05, "decay": 0.95}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 48)
        self.bn = nn.BatchNorm1d(48)
        self.fc2 = nn.Linear(48, 5)

    def forward(self, x):
        return self.fc2(F.dropout(F.relu(self.bn(self.fc1(x))), 0.2, self.training))


class EMA:
    def __init__(self, model, decay):
        self.decay, self.updates = decay, 0
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.backup = {}

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for k, v in model.state_dict().items():
            if v.dtype.is_floating_point:
                self.shadow[k].mul_(d).add_(v, alpha=1 - d)
            else:
                self.shadow[k].copy_(v)

    @contextlib.contextmanager
    def swapped_in(self, model):
        self.backup = {k: v.detach().clone() for k, v in model.state_dict().items()}
        for k, v in model.state_dict().items():
            v.data.copy_(self.shadow[k])
        try:
            yield model
        finally:
            for k, v in model.state_dict().items():
                v.data.copy_(self.backup[k])
            self.backup = {}


class BestKeeper:
    def __init__(self):
        self.score, self.state = float("inf"), None

    def offer(self, score, model):
        if score < self.score:
            self.score, self.state = score, copy.deepcopy(model.state_dict())


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    y = torch.randint(5, (n,), generator=g)
    return centres[y] + 1.2 * torch.randn(n, 16, generator=g), y


@torch.no_grad()
def evaluate(model, data):
    training = model.training
    model.eval()
    loss = F.cross_entropy(model(data[0]), data[1]).item()
    model.train(training)
    return loss


def main(cfg=CFG):
    torch.manual_seed(cfg["seed"])
    model = Net()
    ema, best = EMA(model, cfg["decay"]), BestKeeper()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg["epochs"])
    train, val = make_data(384, 1), make_data(192, 2)
    model.train()
    for epoch in range(cfg["epochs"]):
        for step, idx in enumerate(torch.randperm(len(train[0])).split(cfg["batch_size"])):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train[0][idx]), train[1][idx])
            loss.backward()
            optimizer.step()
            ema.update(model)
            if step % 6 == 5:
                with ema.swapped_in(model) as averaged:
                    score = evaluate(averaged, val)
                    best.offer(score, averaged)
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f} raw {evaluate(model, val):.4f} averaged {score:.4f}")
    model.load_state_dict(best.state)
    return evaluate(model, val)


if __name__ == "__main__":
    main()
