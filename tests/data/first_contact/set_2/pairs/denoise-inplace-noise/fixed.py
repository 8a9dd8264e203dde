"""Denoising autoencoder for short waveforms with a stack of augmentations."""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    samples: int = 384
    length: int = 48
    hidden: int = 96
    code: int = 40
    batch_size: int = 64
    epochs: int = 25
    lr: float = 3e-3
    snr_noise: float = 0.4
    drop_chunks: int = 2
    seed: int = 17


class Waveforms(torch.utils.data.Dataset):
    def __init__(self, n, length):
        t = torch.linspace(0, 1, length)
        freq = torch.randint(1, 5, (n, 1)).float()
        phase = 2 * math.pi * torch.rand(n, 1)
        self.wave = torch.sin(2 * math.pi * freq * t + phase) * (0.5 + torch.rand(n, 1))

    def __len__(self):
        return len(self.wave)

    def __getitem__(self, index):
        return self.wave[index]


class AddNoise:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        x += self.scale * torch.randn_like(x)
        return x


class DropChunks:
    def __init__(self, chunks, width=4):
        self.chunks, self.width = chunks, width

    def __call__(self, x):
        for _ in range(self.chunks):
            start = int(torch.randint(x.shape[-1] - self.width, ()))
            x[..., start:start + self.width] = 0.0
        return x


class Augmenter:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class DenoisingAutoencoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(cfg.length, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.code)
        )
        self.decoder = nn.Sequential(
            nn.Linear(cfg.code, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.length)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.train_set = Waveforms(cfg.samples, cfg.length)
        self.test_set = Waveforms(128, cfg.length)
        self.augment = Augmenter(AddNoise(cfg.snr_noise), DropChunks(cfg.drop_chunks))
        self.model = DenoisingAutoencoder(cfg)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=cfg.lr, total_steps=cfg.epochs * (cfg.samples // cfg.batch_size)
        )
        self.loader = torch.utils.data.DataLoader(
            self.train_set, batch_size=cfg.batch_size, shuffle=True, drop_last=True
        )

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for clean in self.loader:
            noisy = self.augment(clean.clone())
            loss = F.mse_loss(self.model(noisy), clean)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            total += loss.item() / len(self.loader)
        return total

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        clean = self.test_set.wave
        noisy = self.augment(clean.clone())
        return F.mse_loss(self.model(noisy), clean).item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            train = self.train_epoch()
            if epoch % 8 == 0 or epoch == self.cfg.epochs - 1:
                print(f"epoch {epoch} train {train:.4f} test {self.evaluate():.4f}")


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    trainer.fit()
    return {"denoising_error": trainer.evaluate()}


if __name__ == "__main__":
    main()
