import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

EPS = 1e-8
NFFT, HOP, BANDS, SEGMENT = 64, 32, 6, 8


def octave_bands(n_bins, n_bands):
    edges = np.geomspace(1, n_bins, n_bands + 1).astype(int)
    obm = np.zeros((n_bands, n_bins), dtype=np.float32)
    for k in range(n_bands):
        obm[k, edges[k]:max(edges[k] + 1, edges[k + 1])] = 1.0
    return torch.from_numpy(obm)


class NegSTOILoss(nn.Module):
    def __init__(self, beta=-15.0):
        super().__init__()
        self.register_buffer("obm", octave_bands(NFFT // 2 + 1, BANDS))
        self.register_buffer("window", torch.hann_window(NFFT))
        self.clip = 10 ** (-beta / 20)

    def bands(self, wav):
        spec = torch.stft(wav, NFFT, HOP, window=self.window, return_complex=True)
        power = spec.real.pow(2) + spec.imag.pow(2)
        return torch.matmul(self.obm, power).sqrt()

    def forward(self, est, ref):
        x, y = self.bands(ref), self.bands(est)
        x = x.unfold(-1, SEGMENT, SEGMENT // 2)
        y = y.unfold(-1, SEGMENT, SEGMENT // 2)
        norm_x = x.norm(dim=-1, keepdim=True)
        norm_y = y.norm(dim=-1, keepdim=True)
        y = torch.min(y * norm_x / (norm_y + EPS), x * (1 + self.clip))
        x = x - x.mean(-1, keepdim=True)
        y = y - y.mean(-1, keepdim=True)
        x = x / (x.norm(dim=-1, keepdim=True) + EPS)
        y = y / (y.norm(dim=-1, keepdim=True) + EPS)
        return -(x * y).sum(-1).mean()


class GateNet(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, hidden, 15, padding=7), nn.ReLU(),
                                  nn.Conv1d(hidden, hidden, 9, padding=4), nn.ReLU(),
                                  nn.Conv1d(hidden, 1, 9, padding=4))

    def forward(self, wav):
        level = F.avg_pool1d(wav.abs(), 65, 1, 32)
        gate = (level > 0.06).float()
        return (gate * (wav + self.body(wav))).squeeze(1)


def utterances(n, rng, pause):
    t = np.arange(1024) / 4000.0
    out_clean, out_noisy = [], []
    for _ in range(n):
        f0 = rng.uniform(100, 250)
        wav = sum(np.sin(2 * np.pi * f0 * k * t) / k for k in range(1, 6)) * 0.3
        wav = wav * (0.6 + 0.4 * np.sin(2 * np.pi * rng.uniform(4, 9) * t))
        noise = 0.12 * rng.randn(len(t))
        if pause and rng.rand() < 0.3:
            start = rng.randint(100, 600)
            wav[start:start + 400] = 0.0
            noise[start:start + 400] = 0.0
        out_clean.append(wav)
        out_noisy.append(wav + noise)
    as_tensor = lambda a: torch.tensor(np.stack(a), dtype=torch.float32)
    return as_tensor(out_noisy).unsqueeze(1), as_tensor(out_clean)


class Runner:
    def __init__(self, steps=60, lr=1e-3, max_norm=5.0):
        self.steps, self.max_norm = steps, max_norm
        self.net, self.loss = GateNet(), NegSTOILoss()
        self.optim = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.rng = np.random.RandomState(0)
        self.skipped = 0

    def step(self, noisy, clean):
        loss = self.loss(self.net(noisy), clean)
        self.optim.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.max_norm)
        if math.isfinite(norm.item()):
            self.optim.step()
        else:
            self.skipped += 1
        return loss.item()

    def fit(self):
        val = utterances(16, self.rng, pause=False)
        for step in range(1, self.steps + 1):
            loss = self.step(*utterances(4, self.rng, pause=True))
            if step % 20 == 0:
                with torch.no_grad():
                    stoi = -self.loss(self.net(val[0]), val[1]).item()
                print(f"step {step} loss {loss:.4f} val stoi {stoi:.4f} skipped {self.skipped}")


def main():
    torch.manual_seed(0)
    Runner().fit()


if __name__ == "__main__":
    main()
