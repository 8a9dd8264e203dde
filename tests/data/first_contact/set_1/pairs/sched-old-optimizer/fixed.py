"""Two-stage fine-tuning: warm up the head, then unfreeze the encoder with layer-wise rates."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class HParams:
    seed: int = 1
    epochs: int = 10
    unfreeze_epoch: int = 3
    head_lr: float = 0.1
    encoder_lr: float = 0.1
    momentum: float = 0.9
    step_size: int = 2
    gamma: float = 0.3
    batch_size: int = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.encoder(x))


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    x = torch.randn(n, 20, generator=g)
    y = (x @ w + 2.0 * torch.randn(n, 5, generator=g)).argmax(1)
    return x, y


class FinetuneTask:
    def __init__(self, hp):
        self.hp = hp
        self.model = Net()
        self.set_encoder_trainable(False)
        self.optimizer = self.build_optimizer()
        self.scheduler = self.build_scheduler(self.optimizer)
        self.train_data = make_data(256, 1)
        self.val_data = make_data(256, 2)
        self.lrs = []

    def set_encoder_trainable(self, flag):
        for p in self.model.encoder.parameters():
            p.requires_grad_(flag)

    def build_optimizer(self):
        groups = [{"params": self.model.head.parameters(), "lr": self.hp.head_lr}]
        encoder = [p for p in self.model.encoder.parameters() if p.requires_grad]
        if encoder:
            groups.append({"params": encoder, "lr": self.hp.encoder_lr})
        return torch.optim.SGD(groups, momentum=self.hp.momentum)

    def build_scheduler(self, optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, self.hp.step_size, self.hp.gamma)

    def on_epoch_start(self, epoch):
        if epoch == self.hp.unfreeze_epoch:
            self.set_encoder_trainable(True)
            self.optimizer = self.build_optimizer()
            self.scheduler = self.build_scheduler(self.optimizer)
        self.model.train()

    def training_step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def on_epoch_end(self):
        self.scheduler.step()
        self.lrs.append(self.scheduler.get_last_lr()[0])

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.val_data
        logits = self.model(x)
        return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()

    def fit(self):
        x, y = self.train_data
        for epoch in range(self.hp.epochs):
            self.on_epoch_start(epoch)
            total = 0.0
            for idx in torch.randperm(len(x)).split(self.hp.batch_size):
                total += self.training_step(x[idx], y[idx]) * len(idx)
            self.on_epoch_end()
            val_loss, val_acc = self.validate()
            print(f"epoch {epoch} lr {self.lrs[-1]:.5f} train {total / len(x):.4f} val {val_loss:.4f} acc {val_acc:.3f}")
        return val_loss, val_acc


def main():
    hp = HParams()
    torch.manual_seed(hp.seed)
    task = FinetuneTask(hp)
    val_loss, val_acc = task.fit()
    return {"val_loss": val_loss, "val_acc": val_acc, "task": task}


if __name__ == "__main__":
    main()
