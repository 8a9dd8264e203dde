import io
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class TrainerConfig:
    lr: float = 3e-3
    batch_size: int = 16
    batches_per_epoch: int = 40
    ema_decay: float = 0.995
    faster_decay_at_start: bool = True


class CircularConvEmulator(nn.Module):
    def __init__(self, channels=2, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(channels, width, 5, padding=2, padding_mode="circular"),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2, padding_mode="circular"),
            nn.GELU(),
            nn.Conv1d(width, channels, 5, padding=2, padding_mode="circular"),
        )

    def forward(self, state):
        return state + self.net(state)


class EMATracker:
    def __init__(self, model, decay, faster_decay_at_start):
        self.decay = decay
        self.faster_decay_at_start = faster_decay_at_start
        self.num_updates = 0
        self.params = {k: p.detach().clone() for k, p in model.named_parameters()}

    @torch.no_grad()
    def __call__(self, model):
        decay = self.decay
        if self.faster_decay_at_start:
            decay = min(decay, (1 + self.num_updates) / (10 + self.num_updates))
        self.num_updates += 1
        for name, param in model.named_parameters():
            self.params[name].lerp_(param, 1.0 - decay)

    def applied_to(self, model):
        twin = CircularConvEmulator()
        twin.load_state_dict(model.state_dict())
        twin.load_state_dict(self.params)
        return twin

    def get_state(self):
        return {"num_updates": self.num_updates, "params": self.params}

    @classmethod
    def from_state(cls, state, model, config):
        tracker = cls(model, config.ema_decay, config.faster_decay_at_start)
        tracker.num_updates = state["num_updates"]
        tracker.params = {k: v.clone() for k, v in state["params"].items()}
        return tracker


def build_ema(model, config):
    return EMATracker(model, config.ema_decay, config.faster_decay_at_start)


class Trainer:
    def __init__(self, config, model, train_data, checkpoint=None):
        self.config = config
        self.model = model
        self.train_data = train_data
        self.optimization = torch.optim.Adam(model.parameters(), lr=config.lr)
        self.epochs_trained = 0
        if checkpoint is not None:
            self.restore_checkpoint(checkpoint)
        self._ema = build_ema(self.model, config)

    def restore_checkpoint(self, buffer):
        buffer.seek(0)
        state = torch.load(buffer, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimization.load_state_dict(state["optimization"])
        self.epochs_trained = state["epochs_trained"]
        self._ema = EMATracker.from_state(state["ema"], self.model, self.config)

    def save_checkpoint(self):
        buffer = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimization": self.optimization.state_dict(),
                "epochs_trained": self.epochs_trained,
                "ema": self._ema.get_state(),
            },
            buffer,
        )
        return buffer

    def train_one_epoch(self, n_batches=None):
        self.model.train()
        inputs, targets = self.train_data
        for _ in range(n_batches or self.config.batches_per_epoch):
            pick = torch.randint(0, len(inputs), (self.config.batch_size,))
            loss = F.l1_loss(self.model(inputs[pick]), targets[pick])
            self.optimization.zero_grad()
            loss.backward()
            self.optimization.step()
            self._ema(self.model)
        self.epochs_trained += 1

    @torch.no_grad()
    def validate(self, data):
        model = self._ema.applied_to(self.model).eval()
        state, errors = data[0], []
        for truth in data[1:]:
            state = model(state)
            errors.append(F.mse_loss(state, truth).item())
        return sum(errors) / len(errors)


def advect(state):
    moved = torch.stack([state[:, 0].roll(1, -1), state[:, 1].roll(-2, -1)], dim=1)
    coupled = moved + 0.1 * torch.tanh(moved.flip(1))
    return 0.5 * coupled + 0.25 * (coupled.roll(1, -1) + coupled.roll(-1, -1))


def main():
    torch.manual_seed(0)
    inputs = torch.randn(400, 2, 32)
    targets = advect(inputs) + 0.5 * torch.randn(400, 2, 32)
    rollout = [torch.randn(64, 2, 32)]
    for _ in range(3):
        rollout.append(advect(rollout[-1]))
    config = TrainerConfig()
    trainer = Trainer(config, CircularConvEmulator(), (inputs, targets))
    for _ in range(8):
        trainer.train_one_epoch()
    print(f"validation before the stop {trainer.validate(rollout):.5f}")
    checkpoint = trainer.save_checkpoint()

    resumed = Trainer(config, CircularConvEmulator(), (inputs, targets), checkpoint)
    print(f"resumed at epoch {resumed.epochs_trained}")
    for _ in range(4):
        resumed.train_one_epoch(n_batches=3)
        print(f"epoch {resumed.epochs_trained} validation {resumed.validate(rollout):.5f}")


if __name__ == "__main__":
    main()
