import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class HParams:
    n_mels: int = 16
    n_phones: int = 9
    hidden: int = 32
    batch_size: int = 8
    max_steps: int = 48
    lr: float = 4e-3
    lambda_ph_ctc: float = 1.0
    lambda_bd: float = 0.5
    seed: int = 1234


class SongCorpus:
    def __init__(self, hp, size):
        rng = np.random.RandomState(hp.seed)
        self.timbre = rng.randn(hp.n_phones, hp.n_mels).astype("float32")
        self.items = []
        for _ in range(size):
            n = rng.randint(4, 7)
            phones = rng.randint(1, hp.n_phones, size=n)
            frames, bounds = [], []
            for p in phones:
                d = rng.randint(3, 6)
                noise = 0.3 * rng.randn(d, hp.n_mels).astype("float32")
                frames.append(self.timbre[p] + noise)
                bounds += [1.0] + [0.0] * (d - 1)
            self.items.append((np.concatenate(frames), phones, np.array(bounds, "float32")))

    def collate(self, picks):
        chosen = [self.items[i] for i in picks]
        t = max(len(c[0]) for c in chosen)
        u = max(len(c[1]) for c in chosen)
        mel = torch.zeros(len(chosen), t, chosen[0][0].shape[1])
        phones = torch.zeros(len(chosen), u, dtype=torch.long)
        bounds = torch.zeros(len(chosen), t)
        for i, (m, p, b) in enumerate(chosen):
            mel[i, : len(m)] = torch.from_numpy(m)
            phones[i, : len(p)] = torch.from_numpy(p)
            bounds[i, : len(b)] = torch.from_numpy(b)
        return {
            "mel": mel,
            "phones": phones,
            "bounds": bounds,
            "mel_lens": torch.tensor([len(c[0]) for c in chosen]),
            "ph_lens": torch.tensor([len(c[1]) for c in chosen]),
        }


class StarNet(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.pre = nn.Conv1d(hp.n_mels, hp.hidden, 3, padding=1)
        self.norm = nn.LayerNorm(hp.hidden)
        self.rnn = nn.GRU(hp.hidden, hp.hidden, batch_first=True, bidirectional=True)
        self.ph_head = nn.Linear(2 * hp.hidden, hp.n_phones)
        self.bd_head = nn.Linear(2 * hp.hidden, 1)

    def forward(self, mel):
        x = self.pre(mel.transpose(1, 2)).transpose(1, 2)
        x, _ = self.rnn(F.gelu(self.norm(x)))
        return {"ph_frame_logits": self.ph_head(x), "bd_logits": self.bd_head(x).squeeze(-1)}


def ph_ctc(frame_logits, phones, mel_lens, ph_lens):
    return F.ctc_loss(
        frame_logits.transpose(0, 1), phones, mel_lens, ph_lens, blank=0, zero_infinity=True
    )


def boundary_loss(logits, bounds, mel_lens):
    mask = torch.arange(logits.shape[1])[None] < mel_lens[:, None]
    raw = F.binary_cross_entropy_with_logits(logits, bounds, reduction="none")
    return (raw * mask).sum() / mask.sum()


class StarsTask:
    def __init__(self, hp):
        self.hp = hp
        self.corpus = SongCorpus(hp, 48)
        self.model = StarNet(hp)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=hp.lr)

    def run_model(self, sample):
        out = self.model(sample["mel"])
        return {
            "ph_ctc_loss": self.hp.lambda_ph_ctc
            * ph_ctc(out["ph_frame_logits"], sample["phones"], sample["mel_lens"], sample["ph_lens"]),
            "bd_loss": self.hp.lambda_bd
            * boundary_loss(out["bd_logits"], sample["bounds"], sample["mel_lens"]),
        }

    def training_step(self, sample):
        losses = self.run_model(sample)
        total = sum(losses.values())
        self.optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {k: float(v.detach()) for k, v in losses.items()}

    def fit(self):
        self.model.train()
        for step in range(self.hp.max_steps):
            picks = random.sample(range(len(self.corpus.items)), self.hp.batch_size)
            logs = self.training_step(self.corpus.collate(picks))
            if (step + 1) % 16 == 0:
                print(step + 1, {k: round(v, 3) for k, v in logs.items()})


def target(frame_logits):
    phones = torch.tensor([[1, 2], [3, 1]])
    return ph_ctc(frame_logits, phones, torch.tensor([5, 5]), torch.tensor([2, 2]))


def make_inputs():
    g = torch.Generator().manual_seed(3)
    return (torch.randn(2, 5, 4, generator=g, dtype=torch.double).requires_grad_(True),)


def main():
    hp = HParams()
    random.seed(hp.seed)
    torch.manual_seed(hp.seed)
    StarsTask(hp).fit()


if __name__ == "__main__":
    main()
