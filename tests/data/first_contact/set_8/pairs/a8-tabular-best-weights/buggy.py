import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TabMlp(nn.Module):
    def __init__(self, n_continuous, cardinalities, embed_dim=8, hidden=(64, 64)):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(c, embed_dim) for c in cardinalities)
        dims = [n_continuous + embed_dim * len(cardinalities), *hidden]
        layers = []
        for d_in, d_out in zip(dims[:-1], dims[1:]):
            layers += [nn.Linear(d_in, d_out), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.out = nn.Linear(dims[-1], 1)

    def forward(self, cont, cat):
        embedded = [emb(cat[:, i]) for i, emb in enumerate(self.embeds)]
        return self.out(self.mlp(torch.cat([cont, *embedded], dim=1))).squeeze(1)


class Callback:
    def set_trainer(self, trainer):
        self.trainer = trainer

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
        self.records.append(dict(logs, epoch=epoch))


class EarlyStopping(Callback):
    def __init__(self, monitor="val_loss", min_delta=0.0, patience=10, restore_best_weights=True):
        self.monitor = monitor
        self.min_delta = min_delta
        self.patience = patience
        self.restore_best_weights = restore_best_weights

    def on_train_begin(self):
        self.wait = 0
        self.best = np.inf
        self.best_epoch = 0
        self.state_dict = None

    def on_epoch_end(self, epoch, logs):
        current = logs[self.monitor]
        if current < self.best - self.min_delta:
            self.best = current
            self.best_epoch = epoch
            self.wait = 0
            if self.restore_best_weights:
                self.state_dict = self.trainer.model.state_dict()
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.trainer.early_stop = True

    def on_train_end(self):
        if self.restore_best_weights and self.state_dict is not None:
            self.trainer.model.load_state_dict(self.state_dict)


class Trainer:
    def __init__(self, model, lr, callbacks):
        self.model = model
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.callbacks = callbacks
        self.early_stop = False
        for callback in callbacks:
            callback.set_trainer(self)

    def _call(self, hook, *args):
        for callback in self.callbacks:
            getattr(callback, hook)(*args)

    def _train_epoch(self, loader):
        self.model.train()
        total = 0.0
        for cont, cat, y in loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(cont, cat), y)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(y)
        return total / len(loader.dataset)

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        total = 0.0
        for cont, cat, y in loader:
            total += self.criterion(self.model(cont, cat), y).item() * len(y)
        return total / len(loader.dataset)

    def fit(self, train_loader, valid_loader, n_epochs):
        self._call("on_train_begin")
        for epoch in range(n_epochs):
            logs = {"train_loss": self._train_epoch(train_loader)}
            logs["val_loss"] = self.evaluate(valid_loader)
            self._call("on_epoch_end", epoch, logs)
            if self.early_stop:
                break
        self._call("on_train_end")


def make_tabular(n, rng):
    cont = rng.normal(size=(n, 6)).astype(np.float32)
    cat = np.stack([rng.integers(0, 12, n), rng.integers(0, 5, n)], axis=1)
    y = np.sin(cont[:, 0]) + 0.5 * cont[:, 1] * (cat[:, 1] - 2) + 0.6 * rng.normal(size=n)
    return TensorDataset(
        torch.from_numpy(cont), torch.from_numpy(cat), torch.from_numpy(y.astype(np.float32))
    )


def main():
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    train_loader = DataLoader(make_tabular(160, rng), batch_size=32, shuffle=True)
    valid_loader = DataLoader(make_tabular(400, rng), batch_size=400)
    history, stopper = History(), EarlyStopping(patience=25)
    model = TabMlp(6, [12, 5])
    trainer = Trainer(model, lr=3e-3, callbacks=[history, stopper])
    trainer.fit(train_loader, valid_loader, n_epochs=120)
    print(f"stopped after {len(history.records)} epochs, best epoch {stopper.best_epoch}")
    print(f"best val_loss {stopper.best:.4f}")
    print(f"final val_loss {trainer.evaluate(valid_loader):.4f}")


if __name__ == "__main__":
    main()
