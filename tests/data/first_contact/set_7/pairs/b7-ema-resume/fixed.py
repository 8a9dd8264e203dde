import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class ExponentialMovingAverage:
    def __init__(self, parameters, decay):
        self.decay = decay
        self.shadow_params = [p.detach().clone() for p in parameters]
        self.collected_params = None

    @torch.no_grad()
    def update(self, parameters):
        for s, p in zip(self.shadow_params, parameters):
            s.sub_((1.0 - self.decay) * (s - p))

    @torch.no_grad()
    def copy_to(self, parameters):
        for s, p in zip(self.shadow_params, parameters):
            p.copy_(s)

    def store(self, parameters):
        self.collected_params = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def restore(self, parameters):
        for c, p in zip(self.collected_params, parameters):
            p.copy_(c)

    def state_dict(self):
        return {"shadow_params": self.shadow_params, "collected_params": self.collected_params}

    def load_state_dict(self, state):
        state = copy.deepcopy(state)
        self.shadow_params = state["shadow_params"]
        self.collected_params = state["collected_params"]


class Callback:
    def on_fit_start(self, trainer, task): ...
    def on_train_epoch_start(self, trainer, task): ...
    def on_train_batch_end(self, trainer, task): ...
    def on_validation_epoch_start(self, trainer, task): ...
    def state_dict(self): return {}
    def load_state_dict(self, state): ...


class EMA(Callback):
    def __init__(self, decay):
        self.decay = decay
        self.ema = None
        self._to_load = None

    def on_fit_start(self, trainer, task):
        self.ema = ExponentialMovingAverage(task.model.parameters(), self.decay)
        if self._to_load is not None:
            self.ema.load_state_dict(self._to_load)
            self.ema.restore(task.model.parameters())
            self._to_load = None
        self.ema.store(task.model.parameters())
        self.ema.copy_to(task.model.parameters())

    def on_train_epoch_start(self, trainer, task):
        self.ema.restore(task.model.parameters())

    def on_train_batch_end(self, trainer, task):
        self.ema.update(task.model.parameters())

    def on_validation_epoch_start(self, trainer, task):
        self.ema.store(task.model.parameters())
        self.ema.copy_to(task.model.parameters())

    def state_dict(self):
        return self.ema.state_dict()

    def load_state_dict(self, state):
        self._to_load = state


class PairPotential(nn.Module):
    def __init__(self, n_rbf=16, width=32):
        super().__init__()
        self.register_buffer("centers", torch.linspace(0.5, 4.0, n_rbf))
        self.filter_net = nn.Sequential(nn.Linear(n_rbf, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, positions):
        n = positions.size(1)
        i, j = torch.triu_indices(n, n, 1)
        dist = (positions[:, i] - positions[:, j]).pow(2).sum(-1).sqrt()
        rbf = torch.exp(-4.0 * (dist.unsqueeze(-1) - self.centers).pow(2))
        return self.filter_net(rbf).squeeze(-1).sum(1)


class AtomisticTask(nn.Module):
    def __init__(self, model, lr):
        super().__init__()
        self.model = model
        self.lr = lr

    def configure_optimizers(self):
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)

    def loss(self, batch):
        positions, energy = batch
        return F.mse_loss(self.model(positions), energy)


class Trainer:
    def __init__(self, max_epochs, callbacks, seed=0):
        self.max_epochs, self.callbacks = max_epochs, callbacks
        self.checkpoint = None
        self.generator = torch.Generator().manual_seed(seed)

    def call(self, hook, task):
        for cb in self.callbacks:
            getattr(cb, hook)(self, task)

    def dump_checkpoint(self, epoch, task):
        self.checkpoint = copy.deepcopy(
            {
                "epoch": epoch,
                "state_dict": task.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "callbacks": [cb.state_dict() for cb in self.callbacks],
            }
        )

    def fit(self, task, train, val, ckpt=None, batch_size=16):
        self.optimizer = task.configure_optimizers()
        first = 0
        if ckpt is not None:
            first = ckpt["epoch"] + 1
            task.load_state_dict(ckpt["state_dict"])
            self.optimizer.load_state_dict(ckpt["optimizer"])
            for cb, state in zip(self.callbacks, ckpt["callbacks"]):
                cb.load_state_dict(state)
        self.call("on_fit_start", task)
        for epoch in range(first, self.max_epochs):
            task.train()
            self.call("on_train_epoch_start", task)
            total = 0.0
            for idx in torch.randperm(len(train[0]), generator=self.generator).split(batch_size):
                self.optimizer.zero_grad()
                loss = task.loss((train[0][idx], train[1][idx]))
                loss.backward()
                self.optimizer.step()
                self.call("on_train_batch_end", task)
                total += loss.item() * len(idx)
            task.eval()
            self.call("on_validation_epoch_start", task)
            with torch.no_grad():
                val_loss = task.loss(val).item()
            self.dump_checkpoint(epoch, task)
            print(f"epoch {epoch}: train_loss {total / len(train[0]):.4f} val_loss {val_loss:.4f}")


def molecules(n, generator, n_atoms=5):
    positions = 1.2 * torch.randn(n, n_atoms, 3, generator=generator)
    i, j = torch.triu_indices(n_atoms, n_atoms, 1)
    dist = (positions[:, i] - positions[:, j]).norm(dim=-1)
    energy = ((1 - torch.exp(-(dist - 1.2))).pow(2) - 1).clamp(max=3.0).sum(1)
    return positions, energy


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(9)
    train, val = molecules(256, gen), molecules(64, gen)

    trainer = Trainer(max_epochs=5, callbacks=[EMA(decay=0.99)], seed=1)
    trainer.fit(AtomisticTask(PairPotential(), lr=5e-3), train, val)

    resumed = Trainer(max_epochs=9, callbacks=[EMA(decay=0.99)], seed=2)
    resumed.fit(AtomisticTask(PairPotential(), lr=5e-3), train, val, ckpt=trainer.checkpoint)


if __name__ == "__main__":
    main()
