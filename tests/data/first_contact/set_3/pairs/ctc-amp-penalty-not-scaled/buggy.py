"""Small CTC acoustic model in mixed precision, with a smoothness penalty on the frame posteriors."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    n_mels: int = 12
    hidden: int = 24
    tokens: int = 6
    frames: int = 24
    batch_size: int = 8
    steps: int = 60
    lr: float = 1e-2
    smooth_weight: float = 4.0
    clip: float = 5.0
    use_amp: bool = True
    seed: int = 14


class AcousticModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(cfg.n_mels, cfg.hidden, 3, padding=1), nn.ReLU(),
                                  nn.Conv1d(cfg.hidden, cfg.hidden, 3, padding=1), nn.ReLU())
        self.out = nn.Linear(cfg.hidden, cfg.tokens)

    def forward(self, feats):
        return self.out(self.conv(feats.transpose(1, 2)).transpose(1, 2))


class Utterances:
    """Each token (1..n-1) lasts four to six frames of its own noisy spectrum."""

    def __init__(self, cfg, seed):
        self.cfg, self.gen = cfg, torch.Generator().manual_seed(seed)
        self.spectra = torch.randn(cfg.tokens, cfg.n_mels, generator=torch.Generator().manual_seed(1))

    def batch(self):
        cfg = self.cfg
        feats = torch.randn(cfg.batch_size, cfg.frames, cfg.n_mels, generator=self.gen)
        targets, in_len, out_len = [], [], []
        for i in range(cfg.batch_size):
            t, labels = 0, []
            while t < cfg.frames - 6:
                k = int(torch.randint(1, cfg.tokens, (), generator=self.gen))
                if labels and labels[-1] == k:
                    continue
                d = int(torch.randint(4, 7, (), generator=self.gen))
                feats[i, t:t + d] += self.spectra[k]
                labels.append(k)
                t += d
            targets += labels
            in_len.append(t)
            out_len.append(len(labels))
        return feats, torch.tensor(targets), torch.tensor(in_len), torch.tensor(out_len)


def smoothness(logits):
    p = logits.float().softmax(-1)
    return (p[:, 1:] - p[:, :-1]).pow(2).sum(-1).mean()


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.model = AcousticModel(cfg)
        self.data = Utterances(cfg, cfg.seed)
        self.ctc = nn.CTCLoss(blank=0, zero_infinity=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, cfg.steps)
        self.scaler = torch.amp.GradScaler("cpu", enabled=cfg.use_amp)

    def train_step(self):
        feats, targets, in_len, out_len = self.data.batch()
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cfg.use_amp):
            logits = self.model(feats)
        logp = logits.float().log_softmax(-1).transpose(0, 1)
        loss = self.ctc(logp, targets, in_len, out_len)
        self.scaler.scale(loss).backward(retain_graph=True)
        penalty = self.cfg.smooth_weight * smoothness(logits)
        penalty.backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return loss.item(), penalty.item()

    @torch.no_grad()
    def roughness(self):
        self.model.eval()
        data = Utterances(self.cfg, 321)
        value = sum(smoothness(self.model(data.batch()[0])).item() for _ in range(4)) / 4
        self.model.train()
        return value

    def fit(self):
        for step in range(self.cfg.steps):
            ctc, penalty = self.train_step()
            if step % 15 == 0 or step == self.cfg.steps - 1:
                print(f"step {step} ctc {ctc:.4f} smooth {penalty:.4f}")
        return {"ctc": ctc, "roughness": self.roughness()}


def main():
    result = Trainer(Config()).fit()
    print(f"roughness {result['roughness']:.4f}")
    return result


if __name__ == "__main__":
    main()
