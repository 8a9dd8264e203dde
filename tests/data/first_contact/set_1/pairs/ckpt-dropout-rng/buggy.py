"""Transformer encoder for sequence regression with activation checkpointing."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class ModelConfig:
    d_model: int = 24
    n_layers: int = 3
    seq_len: int = 10
    dropout: float = 0.4
    activation_checkpointing: bool = True


@dataclass
class TrainConfig:
    seed: int = 9
    steps: int = 120
    batch_size: int = 32
    lr: float = 3e-3
    warmup: int = 10
    max_grad_norm: float = 1.0
    log_interval: int = 30


class MixerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm_t, self.norm_c = nn.LayerNorm(cfg.d_model), nn.LayerNorm(cfg.d_model)
        self.tokens = nn.Linear(cfg.seq_len, cfg.seq_len)
        self.channels = nn.Sequential(
            nn.Linear(cfg.d_model, 2 * cfg.d_model), nn.GELU(), nn.Dropout(cfg.dropout),
            nn.Linear(2 * cfg.d_model, cfg.d_model),
        )
        self.residual_dropout = nn.Dropout(cfg.dropout)

    def forward(self, x):
        x = x + self.residual_dropout(self.tokens(self.norm_t(x).transpose(1, 2)).transpose(1, 2))
        return x + self.residual_dropout(self.channels(self.norm_c(x)))


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Linear(4, cfg.d_model)
        self.blocks = nn.ModuleList([MixerBlock(cfg) for _ in range(cfg.n_layers)])
        self.norm = nn.LayerNorm(cfg.d_model)
        self.head = nn.Linear(cfg.d_model, 1)
        self._checkpoint_kwargs = {}
        if cfg.activation_checkpointing:
            self.apply_activation_checkpointing()

    def apply_activation_checkpointing(self):
        preserve_rng_state = False
        self._checkpoint_kwargs = {"use_reentrant": False, "preserve_rng_state": preserve_rng_state}

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            if self.training and self._checkpoint_kwargs:
                h = checkpoint(block, h, **self._checkpoint_kwargs)
            else:
                h = block(h)
        return self.head(self.norm(h).mean(1)).squeeze(-1)


def batches(cfg, seq_len, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(cfg.batch_size, seq_len, 4, generator=g)
        y = (x[:, :, 0] * x[:, :, 1]).mean(1) * 2 + x[:, 0, 2] - 0.5 * x[:, -1, 3].abs()
        yield x, y


class Trainer:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.optim = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.optim, lambda s: min(1.0, (s + 1) / cfg.warmup))
        self.val = [b for b, _ in zip(batches(cfg, model.cfg.seq_len, 99), range(8))]

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        loss = sum(F.mse_loss(self.model(x), y).item() for x, y in self.val) / len(self.val)
        self.model.train()
        return loss

    def train(self):
        self.model.train()
        for step, (x, y) in zip(range(self.cfg.steps), batches(self.cfg, self.model.cfg.seq_len, 1)):
            loss = F.mse_loss(self.model(x), y)
            self.optim.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_grad_norm)
            self.optim.step()
            self.sched.step()
            if step % self.cfg.log_interval == 0:
                print(f"step {step} loss {loss.item():.4f} grad norm {norm:.3f} val {self.evaluate():.4f}")
        return self.evaluate()


def main():
    cfg = TrainConfig()
    torch.manual_seed(cfg.seed)
    model = Encoder(ModelConfig())
    val = Trainer(model, cfg).train()
    print(f"final val {val:.4f}")
    return {"val": val, "model": model}


if __name__ == "__main__":
    main()
