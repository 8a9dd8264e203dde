import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class HParams:
    sample_rate = 8000
    hop = 16
    n_mels = 12
    segment = 256
    batch_size = 8
    steps = 60
    lr = 2e-3
    lambda_adv = 0.05
    lambda_feat = 2.0
    discriminator_start = 10


class Generator(nn.Module):
    def __init__(self, n_mels, hop):
        super().__init__()
        self.pre = nn.Conv1d(n_mels, 32, 5, padding=2)
        self.up = nn.ConvTranspose1d(32, 16, hop * 2, stride=hop, padding=hop // 2)
        self.res = nn.Conv1d(16, 16, 5, padding=2)
        self.post = nn.Conv1d(16, 1, 7, padding=3)

    def forward(self, mel):
        x = F.leaky_relu(self.pre(mel), 0.2)
        x = F.leaky_relu(self.up(x), 0.2)
        x = x + F.leaky_relu(self.res(x), 0.2)
        return torch.tanh(self.post(x))


class ScaleDiscriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([
            nn.Conv1d(1, 8, 9, stride=2, padding=4),
            nn.Conv1d(8, 16, 9, stride=2, padding=4),
            nn.Conv1d(16, 16, 5, padding=2),
        ])
        self.score = nn.Conv1d(16, 1, 3, padding=1)

    def forward(self, x):
        feats = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            feats.append(x)
        return feats, self.score(x)


class MultiScale(nn.Module):
    def __init__(self, n=2):
        super().__init__()
        self.blocks = nn.ModuleList(ScaleDiscriminator() for _ in range(n))
        self.pool = nn.AvgPool1d(4, 2, 1)

    def forward(self, x):
        out = []
        for block in self.blocks:
            out.append(block(x))
            x = self.pool(x)
        return out


def synth_batch(hp, rng):
    frames = hp.segment // hp.hop
    t = np.arange(hp.segment) / hp.sample_rate
    f0 = rng.uniform(150, 900, size=(hp.batch_size, 1))
    audio = 0.5 * np.sin(2 * np.pi * f0 * t) + 0.2 * np.sin(4 * np.pi * f0 * t)
    centers = np.linspace(150, 900, hp.n_mels)[None, :, None]
    mel = np.exp(-((centers - f0[:, :, None]) / 120.0) ** 2)
    mel = np.repeat(mel, frames, axis=2)
    return (torch.tensor(mel, dtype=torch.float32),
            torch.tensor(audio[:, None], dtype=torch.float32))


def train(hp):
    rng = np.random.RandomState(1)
    gen = Generator(hp.n_mels, hp.hop)
    disc = MultiScale()
    optim_g = torch.optim.Adam(gen.parameters(), lr=hp.lr, betas=(0.5, 0.9))
    optim_d = torch.optim.Adam(disc.parameters(), lr=hp.lr, betas=(0.5, 0.9))
    for step in range(1, hp.steps + 1):
        mel, audio = synth_batch(hp, rng)
        fake = gen(mel)[:, :, :hp.segment]

        disc_real = disc(audio)
        disc_fake = disc(fake.detach())
        gap = sum((r.mean() - f.mean()).item() for (_, r), (_, f) in zip(disc_real, disc_fake))

        loss_g = F.l1_loss(fake, audio)
        feat_loss = torch.zeros(())
        if step > hp.discriminator_start:
            disc_fake_g = disc(fake)
            adv = sum(F.mse_loss(s, torch.ones_like(s)) for _, s in disc_fake_g)
            for (f_fake, _), (f_real, _) in zip(disc_fake, disc_real):
                for a, b in zip(f_fake, f_real):
                    feat_loss = feat_loss + F.l1_loss(a, b.detach())
            loss_g = loss_g + hp.lambda_adv * adv + hp.lambda_feat * feat_loss
        optim_g.zero_grad()
        loss_g.backward()
        optim_g.step()

        optim_d.zero_grad()
        with torch.no_grad():
            fake = gen(mel)[:, :, :hp.segment]
        loss_d = torch.zeros(())
        for (_, s_real), (_, s_fake) in zip(disc(audio), disc(fake)):
            loss_d = loss_d + F.mse_loss(s_real, torch.ones_like(s_real))
            loss_d = loss_d + F.mse_loss(s_fake, torch.zeros_like(s_fake))
        loss_d.backward()
        optim_d.step()
        if step % 20 == 0:
            print(f"step {step:3d} d {loss_d.item():.4f} g {loss_g.item():.4f} feat {feat_loss.item():.4f} gap {gap:.3f}")
    return gen, disc


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    train(HParams())


if __name__ == "__main__":
    main()
