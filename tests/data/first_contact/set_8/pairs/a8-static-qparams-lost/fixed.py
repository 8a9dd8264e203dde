import io
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class IntxFakeQuantizeConfig:
    bits: int = 4
    symmetric: bool = False
    is_dynamic: bool = False

    @property
    def bounds(self):
        if self.symmetric:
            return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        return 0, 2**self.bits - 1


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class IntxFakeQuantizer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.register_buffer("scale", torch.zeros(()))
        self.register_buffer("zero_point", torch.zeros(()))

    def _choose_qparams(self, x):
        low, high = self.config.bounds
        x_min, x_max = x.detach().min(), x.detach().max()
        if self.config.symmetric:
            scale = torch.maximum(x_min.abs(), x_max.abs()) / high
            return scale, torch.zeros(())
        scale = (x_max - x_min).clamp_min(1e-6) / (high - low)
        return scale, low - x_min / scale

    def forward(self, x):
        if self.config.is_dynamic:
            scale, zero_point = self._choose_qparams(x)
        else:
            if self.scale == 0:
                scale, zero_point = self._choose_qparams(x)
                self.scale, self.zero_point = scale, zero_point
            scale, zero_point = self.scale, self.zero_point
        low, high = self.config.bounds
        q = RoundSTE.apply(x / scale + zero_point).clamp(low - 0.25, high + 0.25)
        return (q - zero_point) * scale


class FakeQuantizedLinear(nn.Linear):
    def __init__(self, d_in, d_out):
        super().__init__(d_in, d_out)
        self.activation_fake_quantizer = IntxFakeQuantizer(IntxFakeQuantizeConfig())
        self.weight_fake_quantizer = IntxFakeQuantizer(
            IntxFakeQuantizeConfig(bits=4, symmetric=True, is_dynamic=True)
        )

    def forward(self, x):
        x = self.activation_fake_quantizer(x)
        return F.linear(x, self.weight_fake_quantizer(self.weight), self.bias)


class KeywordNet(nn.Module):
    def __init__(self, n_mels=12, frames=16, n_words=5, width=48):
        super().__init__()
        self.fc1 = FakeQuantizedLinear(n_mels * frames, width)
        self.fc2 = FakeQuantizedLinear(width, width)
        self.head = FakeQuantizedLinear(width, n_words)

    def forward(self, x):
        x = F.relu(self.fc1(x.flatten(1)))
        return self.head(F.relu(self.fc2(x)))


class QATTrainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.epoch = 0

    def state_dict(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
        }

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]

    def train_epoch(self, x, y):
        self.model.train()
        for pick in torch.arange(len(x)).split(50):
            loss = F.cross_entropy(self.model(x[pick]), y[pick])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.epoch += 1

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        return F.cross_entropy(self.model(x), y).item()


def make_clips(n, generator, loudness):
    words = torch.randn(5, 12, 16, generator=torch.Generator().manual_seed(3))
    y = torch.randint(0, 5, (n,), generator=generator)
    x = words[y] + 1.5 * torch.randn(n, 12, 16, generator=generator)
    return loudness * x, y


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(8)
    x, y = make_clips(400, generator, 1.0)
    x_valid, y_valid = make_clips(400, generator, 1.0)
    x_quiet, y_quiet = make_clips(100, generator, 0.1)
    trainer = QATTrainer(KeywordNet(), lr=2e-3)
    for _ in range(4):
        trainer.train_epoch(x, y)
    print(f"epoch {trainer.epoch} quiet clips {trainer.evaluate(x_quiet, y_quiet):.4f} "
          f"validation {trainer.evaluate(x_valid, y_valid):.4f}")
    buffer = io.BytesIO()
    torch.save(trainer.state_dict(), buffer)
    buffer.seek(0)

    resumed = QATTrainer(KeywordNet(), lr=2e-3)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    print(f"epoch {resumed.epoch} quiet clips {resumed.evaluate(x_quiet, y_quiet):.4f} "
          f"validation {resumed.evaluate(x_valid, y_valid):.4f}")
    for _ in range(2):
        resumed.train_epoch(x, y)
        print(f"epoch {resumed.epoch} validation {resumed.evaluate(x_valid, y_valid):.4f}")


if __name__ == "__main__":
    main()
