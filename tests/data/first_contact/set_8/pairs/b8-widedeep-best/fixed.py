"""Wide and deep recommender with a Keras-like trainer and callbacks."""
import copy

import torch
import torch.nn.functional as F
from torch import nn


class Wide(nn.Module):
    def __init__(self, n_crossed):
        super().__init__()
        self.wide_linear = nn.Embedding(n_crossed, 1)

    def forward(self, crossed):
        return self.wide_linear(crossed).sum(1)


class TabMlp(nn.Module):
    def __init__(self, n_users, n_items, n_cont, dim=12):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim + n_cont, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.output = nn.Linear(32, 1)

    def forward(self, users, items, cont):
        return self.output(self.mlp(torch.cat([self.user(users), self.item(items), cont], 1)))


class WideDeep(nn.Module):
    def __init__(self, wide, deeptabular):
        super().__init__()
        self.wide = wide
        self.deeptabular = deeptabular

    def forward(self, batch):
        out = self.wide(batch["crossed"]) + self.deeptabular(batch["user"], batch["item"], batch["cont"])
        return out.squeeze(1)


class Callback:
    def set_trainer(self, trainer):
        self.trainer = trainer
        self.model = trainer.model

    def on_train_begin(self):
        pass

    def on_epoch_end(self, epoch, logs):
        pass

    def on_train_end(self):
        pass


class History(Callback):
    def on_train_begin(self):
        self.records = []

    def on_epoch_end(self, epoch, logs):
        self.records.append(dict(logs))
        print(f"epoch {epoch} " + " ".join(f"{k} {v:.4f}" for k, v in logs.items()))


class EarlyStopping(Callback):
    def __init__(self, monitor="val_loss", patience=6, min_delta=0.0, restore_best_weights=True):
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.restore_best_weights = restore_best_weights

    def on_train_begin(self):
        self.wait = 0
        self.best = float("inf")
        self.best_epoch = 0
        self.state_dict = None

    def on_epoch_end(self, epoch, logs):
        current = logs[self.monitor]
        if current < self.best - self.min_delta:
            self.best = current
            self.best_epoch = epoch
            self.wait = 0
            if self.restore_best_weights:
                self.state_dict = copy.deepcopy(self.model.state_dict())
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.trainer.early_stop = True

    def on_train_end(self):
        if self.restore_best_weights and self.state_dict is not None:
            self.model.load_state_dict(self.state_dict)
            print(f"restored weights of epoch {self.best_epoch}")


class Trainer:
    def __init__(self, model, optimizer, callbacks):
        self.model = model
        self.optimizer = optimizer
        self.callbacks = callbacks
        self.early_stop = False
        for callback in callbacks:
            callback.set_trainer(self)

    def notify(self, event, *args):
        for callback in self.callbacks:
            getattr(callback, event)(*args)

    def evaluate(self, batch):
        self.model.eval()
        with torch.no_grad():
            return F.binary_cross_entropy_with_logits(self.model(batch), batch["target"]).item()

    def fit(self, train, valid, n_epochs, batch_size=64):
        self.notify("on_train_begin")
        for epoch in range(n_epochs):
            self.model.train()
            total = 0.0
            for index in torch.randperm(len(train["target"])).split(batch_size):
                batch = {k: v[index] for k, v in train.items()}
                loss = F.binary_cross_entropy_with_logits(self.model(batch), batch["target"])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item() * len(index) / len(train["target"])
            self.notify("on_epoch_end", epoch, {"loss": total, "val_loss": self.evaluate(valid)})
            if self.early_stop:
                break
        self.notify("on_train_end")


def make_interactions(n, seed, n_users=60, n_items=40):
    world = torch.Generator().manual_seed(0)
    taste = torch.randn(n_users, 4, generator=world)
    traits = torch.randn(n_items, 4, generator=world)
    g = torch.Generator().manual_seed(seed)
    user = torch.randint(0, n_users, (n,), generator=g)
    item = torch.randint(0, n_items, (n,), generator=g)
    cont = torch.randn(n, 3, generator=g)
    logit = (taste[user] * traits[item]).sum(1) + 0.5 * cont[:, 0]
    target = (torch.rand(n, generator=g) < torch.sigmoid(logit)).float()
    crossed = torch.stack([user % 8 * 8 + item % 8, 64 + user % 16], 1)
    return {"user": user, "item": item, "cont": cont, "crossed": crossed, "target": target}


def main():
    torch.manual_seed(0)
    train, valid, test = (make_interactions(n, seed) for n, seed in ((4000, 1), (600, 2), (1000, 3)))
    model = WideDeep(Wide(80), TabMlp(60, 40, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    trainer = Trainer(model, optimizer, [History(), EarlyStopping()])
    trainer.fit(train, valid, n_epochs=20)
    print(f"valid {trainer.evaluate(valid):.4f} test {trainer.evaluate(test):.4f}")
    return trainer, valid


if __name__ == "__main__":
    main()
