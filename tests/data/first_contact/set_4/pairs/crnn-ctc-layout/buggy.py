"""CTC digit-string recogniser: convolution over the spectrogram, LSTM, CTC."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    mels: int = 12
    symbols: int = 5
    frames_per_symbol: int = 6
    max_symbols: int = 4
    hidden: int = 24
    batch: int = 12
    steps: int = 120
    lr: float = 1e-2
    clip: float = 5.0
    seed: int = 0


class Synth:
    """Each symbol is a spectral template that is held for some frames."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.templates = torch.randn(cfg.symbols + 1, cfg.mels, generator=torch.Generator().manual_seed(5))
        self.templates[0] = 0

    def batch(self, generator):
        cfg = self.cfg
        frames = cfg.max_symbols * cfg.frames_per_symbol * 2
        feats = 0.2 * torch.randn(cfg.batch, cfg.mels, frames, generator=generator)
        targets, lengths, n_frames = [], [], []
        for b in range(cfg.batch):
            n = int(torch.randint(2, cfg.max_symbols + 1, (1,), generator=generator))
            symbols = torch.randint(1, cfg.symbols + 1, (n,), generator=generator)
            for i, s in enumerate(symbols):
                start = 2 * i * cfg.frames_per_symbol
                feats[b, :, start: start + cfg.frames_per_symbol] += self.templates[s].unsqueeze(1)
            targets.append(symbols)
            lengths.append(n)
            n_frames.append(2 * n * cfg.frames_per_symbol)
        return feats, torch.cat(targets), torch.tensor(n_frames), torch.tensor(lengths)


class CRNN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(cfg.mels, cfg.hidden, 3, padding=1), nn.ReLU(),
            nn.Conv1d(cfg.hidden, cfg.hidden, 3, stride=2, padding=1), nn.ReLU())
        self.rnn = nn.LSTM(cfg.hidden, cfg.hidden, bidirectional=True)
        self.classifier = nn.Linear(2 * cfg.hidden, cfg.symbols + 1)

    def output_lengths(self, lengths):
        return (lengths - 1) // 2 + 1

    def forward(self, feats):
        x = self.conv(feats)
        b, c, t = x.shape
        x = x.reshape(t, b, c)
        x, _ = self.rnn(x)
        return F.log_softmax(self.classifier(x), dim=-1)


def greedy_decode(log_probs, lengths):
    best = log_probs.argmax(-1).t()
    decoded = []
    for row, n in zip(best, lengths):
        collapsed = torch.unique_consecutive(row[: int(n)])
        decoded.append(collapsed[collapsed > 0].tolist())
    return decoded


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@torch.no_grad()
def error_rate(model, synth, generator):
    model.eval()
    errors = total = 0
    for _ in range(4):
        feats, targets, n_frames, lengths = synth.batch(generator)
        hyps = greedy_decode(model(feats), model.output_lengths(n_frames))
        for hyp, ref in zip(hyps, targets.split(lengths.tolist())):
            errors += edit_distance(hyp, ref.tolist())
            total += len(ref)
    model.train()
    return errors / total


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    synth, model = Synth(cfg), CRNN(cfg)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.5)
    generator = torch.Generator().manual_seed(cfg.seed)
    for step in range(cfg.steps):
        feats, targets, n_frames, lengths = synth.batch(generator)
        log_probs = model(feats)
        loss = ctc(log_probs, targets, model.output_lengths(n_frames), lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        scheduler.step()
        if step % 40 == 39:
            print(f"step {step} ctc {loss.item():.4f}")
    cer = error_rate(model, synth, torch.Generator().manual_seed(99))
    print(f"symbol error rate {cer:.3f}")
    return {"model": model, "synth": synth, "loss": loss.item(), "cer": cer}


if __name__ == "__main__":
    main()
