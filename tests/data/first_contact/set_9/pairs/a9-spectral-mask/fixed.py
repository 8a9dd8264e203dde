from collections import defaultdict
from enum import Enum, auto

import torch
import torch.nn.functional as F
from torch import nn


class Stage(Enum):
    TRAIN = auto()
    VALID = auto()


def spectral_magnitude(stft, power=1.0, log=False):
    spectr = stft.pow(2).sum(-1)
    if power != 1:
        spectr = (spectr + 1e-6).pow(power)
    if log:
        return torch.log(spectr + 1e-6)
    return spectr


class STFT(nn.Module):
    def __init__(self, n_fft=64, hop=16):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hamming_window(n_fft))

    def forward(self, wav):
        spec = torch.stft(wav, self.n_fft, self.hop, window=self.window, return_complex=True)
        return torch.view_as_real(spec).transpose(1, 2)


class MaskNet(nn.Module):
    def __init__(self, bins=33, hidden=32):
        super().__init__()
        self.norm = nn.LayerNorm(bins)
        self.rnn = nn.GRU(bins, hidden, batch_first=True)
        self.out = nn.Linear(hidden, bins)

    def forward(self, feats):
        h, _ = self.rnn(self.norm(feats))
        return torch.sigmoid(self.out(h))


class Brain:
    def __init__(self, modules, lr, max_grad_norm=5.0, nonfinite_patience=100):
        self.modules = nn.ModuleDict(modules)
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=lr)
        self.max_grad_norm = max_grad_norm
        self.nonfinite_patience = nonfinite_patience
        self.nonfinite_count = 0
        self.stats = defaultdict(list)

    def check_gradients(self, loss):
        if not torch.isfinite(loss):
            self.nonfinite_count += 1
            return False
        norm = nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
        if not torch.isfinite(norm):
            self.nonfinite_count += 1
            if self.nonfinite_count > self.nonfinite_patience:
                raise ValueError("patience exhausted")
            return False
        return True

    def fit_batch(self, batch):
        loss = self.compute_objectives(self.compute_forward(batch, Stage.TRAIN), batch)
        loss.backward()
        if self.check_gradients(loss):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach().item()

    @torch.no_grad()
    def evaluate_batch(self, batch):
        return self.compute_objectives(self.compute_forward(batch, Stage.VALID), batch).item()

    def fit(self, epochs, train_set, valid_set):
        for epoch in range(epochs):
            self.modules.train()
            for i in torch.randperm(len(train_set)).tolist():
                self.stats[Stage.TRAIN].append(self.fit_batch(train_set[i]))
            self.modules.eval()
            valid = [self.evaluate_batch(b) for b in valid_set]
            recent = self.stats[Stage.TRAIN][-len(train_set) :]
            print(epoch, round(sum(recent) / len(recent), 4), round(sum(valid) / len(valid), 4))


class EnhanceBrain(Brain):
    def compute_forward(self, batch, stage):
        noisy = self.modules.stft(batch["noisy"])
        feats = torch.log1p(spectral_magnitude(noisy))
        mask = self.modules.masker(feats)
        return noisy * mask[..., None]

    def compute_objectives(self, predict_spec, batch):
        clean_spec = self.modules.stft(batch["clean"])
        predict = spectral_magnitude(predict_spec, power=0.5)
        target_mag = spectral_magnitude(clean_spec, power=0.5)
        frames = 1 + batch["length"] // self.modules.stft.hop
        valid = torch.arange(predict.shape[1])[None] < frames[:, None]
        diff = F.l1_loss(predict, target_mag, reduction="none").mean(-1)
        return (diff * valid).sum() / valid.sum()


def utterances(n, generator, full_share):
    length = torch.randint(320, 600, (n,), generator=generator)
    length[torch.rand(n, generator=generator) < full_share] = 640
    t = torch.arange(640).float()
    f0 = 0.15 + 0.5 * torch.rand(n, 1, generator=generator)
    clean = torch.sin(f0 * t) + 0.5 * torch.sin(2 * f0 * t)
    live = (t[None] < length[:, None]).float()
    noisy = (clean + 0.6 * torch.randn(n, 640, generator=generator)) * live
    return {"clean": clean * live, "noisy": noisy, "length": length}


def collate(batches, size, generator, full_share):
    return [utterances(size, generator, full_share) for _ in range(batches)]


def target(stft):
    return spectral_magnitude(stft, power=0.5)


def make_inputs():
    g = torch.Generator().manual_seed(4)
    stft = torch.randn(2, 3, 2, generator=g, dtype=torch.double)
    stft[1, 2] = 0.0
    return (stft.requires_grad_(True),)


def main():
    torch.manual_seed(99)
    gen = torch.Generator().manual_seed(99)
    train_set = collate(6, 6, gen, 1.0) + collate(12, 6, gen, 0.5)
    valid_set = collate(3, 6, gen, 0.5)
    brain = EnhanceBrain({"stft": STFT(), "masker": MaskNet()}, lr=4e-3)
    brain.fit(3, train_set, valid_set)


if __name__ == "__main__":
    main()
