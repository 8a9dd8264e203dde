"""Vocoder GAN trained by a generic trainer that runs several optimizers in turn."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainerConfig:
    grad_accum_steps: int = 4
    steps: int = 120
    lr_gen: float = 1e-3
    lr_disc: float = 1e-3
    feat_match_weight: float = 10.0


class Generator(nn.Module):
    def __init__(self, mels=8, hop=8):
        super().__init__()
        self.inp = nn.Conv1d(mels, 24, 3, padding=1)
        self.up = nn.ConvTranspose1d(24, 12, hop * 2, stride=hop, padding=hop // 2)
        self.out = nn.Conv1d(12, 1, 5, padding=2)

    def forward(self, mel):
        x = F.leaky_relu(self.inp(mel), 0.1)
        return torch.tanh(self.out(F.leaky_relu(self.up(x), 0.1)))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([
            nn.Conv1d(1, 12, 9, stride=2, padding=4),
            nn.Conv1d(12, 24, 9, stride=2, padding=4)])
        self.post = nn.Conv1d(24, 1, 3, padding=1)

    def forward(self, x):
        feats = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            feats.append(x)
        return self.post(x), feats


class GANVocoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.model_g = Generator()
        self.model_d = Discriminator()
        self.y_hat = None

    def train_step(self, batch, optimizer_idx):
        mel, y = batch
        if optimizer_idx == 0:
            self.y_hat = self.model_g(mel)
            scores_fake, _ = self.model_d(self.y_hat.detach())
            scores_real, _ = self.model_d(y)
            loss = F.mse_loss(scores_real, torch.ones_like(scores_real)) + \
                F.mse_loss(scores_fake, torch.zeros_like(scores_fake))
            return {"loss_d": loss, "loss": loss}
        scores_fake, feats_fake = self.model_d(self.y_hat)
        with torch.no_grad():
            _, feats_real = self.model_d(y)
        adv = F.mse_loss(scores_fake, torch.ones_like(scores_fake))
        feat = sum(F.l1_loss(a, b) for a, b in zip(feats_fake, feats_real)) / len(feats_real)
        l1 = F.l1_loss(self.y_hat, y)
        loss = adv + self.cfg.feat_match_weight * feat + 10.0 * l1
        return {"loss_g": loss, "l1": l1, "loss": loss}

    def get_optimizer(self):
        return [torch.optim.AdamW(self.model_d.parameters(), self.cfg.lr_disc, (0.8, 0.99)),
                torch.optim.AdamW(self.model_g.parameters(), self.cfg.lr_gen, (0.8, 0.99))]


class Trainer:
    def __init__(self, cfg, model):
        self.cfg, self.model = cfg, model
        self.optimizers = model.get_optimizer()
        self.networks = [model.model_d, model.model_g]

    def optimize(self, batch, idx, step_optimizer):
        self.model.model_d.requires_grad_(idx == 0)
        outputs = self.model.train_step(batch, idx)
        (outputs["loss"] / self.cfg.grad_accum_steps).backward()
        if step_optimizer:
            nn.utils.clip_grad_norm_(self.networks[idx].parameters(), 5.0)
            self.optimizers[idx].step()
            self.optimizers[idx].zero_grad()
        return {k: v.item() for k, v in outputs.items()}

    def fit(self, loader):
        logs = {}
        self.model.train()
        for step, batch in enumerate(loader):
            step_optimizer = (step + 1) % self.cfg.grad_accum_steps == 0
            for idx in range(len(self.optimizers)):
                logs.update(self.optimize(batch, idx, step_optimizer))
            if step % 40 == 0:
                print(f"step {step:3d}  " + "  ".join(
                    f"{k} {logs[k]:.4f}" for k in ("loss_d", "loss_g", "l1")))
        return logs


def loader(n, batch=8, frames=16, hop=8):
    g = torch.Generator().manual_seed(4)
    t = torch.arange(frames * hop) / (frames * hop)
    for _ in range(n):
        f = torch.rand(batch, 1, generator=g) * 6 + 2
        wav = 0.8 * torch.sin(6.283 * f * t)
        mel = torch.stack([wav.view(batch, frames, hop)[..., i] for i in range(hop)], 1)
        yield mel + 0.05 * torch.randn(mel.shape, generator=g), wav.unsqueeze(1)


def main():
    torch.manual_seed(0)
    cfg = TrainerConfig()
    trainer = Trainer(cfg, GANVocoder(cfg))
    logs = trainer.fit(loader(cfg.steps))
    print(f"final l1 {logs['l1']:.4f}  loss_d {logs['loss_d']:.4f}")
    return trainer


if __name__ == "__main__":
    main()
