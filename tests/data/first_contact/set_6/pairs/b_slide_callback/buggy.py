"""Multiple-instance classifier on bags of tile features, with a small Trainer."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Callback:
    def on_fit_start(self, trainer, module):
        pass

    def on_train_epoch_end(self, trainer, module):
        pass

    def on_fit_end(self, trainer, module):
        pass


class LossHistory(Callback):
    def __init__(self):
        self.values = []

    def on_train_epoch_end(self, trainer, module):
        self.values.append(trainer.logged["train_loss"])


class PredictionCallback(Callback):
    """Keeps the predictions on a held-out set after every n-th epoch."""

    def __init__(self, bags, labels, every_n_epochs=2):
        self.bags, self.labels = bags, labels
        self.every_n_epochs = every_n_epochs
        self.rows = []

    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch % self.every_n_epochs == 0:
            self._write_predictions(trainer, module)

    @torch.no_grad()
    def _write_predictions(self, trainer, module):
        module.eval()
        probs = torch.softmax(module(self.bags), dim=1)[:, 1]
        for i, (p, y) in enumerate(zip(probs.tolist(), self.labels.tolist())):
            self.rows.append((trainer.current_epoch, i, y, round(p, 4)))


class AttentionMIL(nn.Module):
    def __init__(self, dim=32, hidden=64, classes=2, dropout=0.5):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout))
        self.attention = nn.Sequential(nn.Linear(hidden, 32), nn.Tanh(), nn.Linear(32, 1))
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, classes))

    def forward(self, bags):
        h = self.embed(bags)
        weights = torch.softmax(self.attention(h), dim=1)
        return self.head((weights * h).sum(dim=1))

    def training_step(self, batch):
        bags, labels = batch
        return F.cross_entropy(self(bags), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-2)


class Trainer:
    def __init__(self, max_epochs, callbacks=()):
        self.max_epochs = max_epochs
        self.callbacks = list(callbacks)
        self.current_epoch = 0
        self.logged = {}

    def _call(self, hook, module):
        for cb in self.callbacks:
            getattr(cb, hook)(self, module)

    def fit(self, module, loader):
        optimizer = module.configure_optimizers()
        module.train()
        self._call("on_fit_start", module)
        for self.current_epoch in range(self.max_epochs):
            losses = []
            for batch in loader:
                loss = module.training_step(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            self.logged["train_loss"] = sum(losses) / len(losses)
            self._call("on_train_epoch_end", module)
        self._call("on_fit_end", module)


def make_bags(n, tiles=20, dim=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (n,), generator=g)
    bags = torch.randn(n, tiles, dim, generator=g)
    bags[:, :4, :6] += 0.7 * labels[:, None, None]
    return bags, labels


def main():
    torch.manual_seed(0)
    bags, labels = make_bags(96)
    held, held_labels = make_bags(200, seed=1)
    loader = [(bags[i:i + 16], labels[i:i + 16]) for i in range(0, 96, 16)]
    history = LossHistory()
    predictions = PredictionCallback(held, held_labels)
    model = AttentionMIL()
    trainer = Trainer(max_epochs=30, callbacks=[history, predictions])
    trainer.fit(model, loader)
    last = [r for r in predictions.rows if r[0] == max(r[0] for r in predictions.rows)]
    acc = sum((p > 0.5) == bool(y) for _, _, y, p in last) / len(last)
    print("train loss", [round(v, 4) for v in history.values[::5]])
    print(f"held-out accuracy {acc:.3f}")
    return model, history


if __name__ == "__main__":
    main()
