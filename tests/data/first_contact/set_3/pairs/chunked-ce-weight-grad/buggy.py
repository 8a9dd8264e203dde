"""Fine-tunes a small LM with a chunked linear + cross entropy that never holds all logits at once."""
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.autograd.function import once_differentiable

IGNORE = -100


@dataclass
class Config:
    vocab: int = 20
    hidden: int = 16
    seq_len: int = 12
    batch: int = 8
    steps: int = 60
    lr: float = 5e-3
    chunk: int = 32
    prompt_weight: float = 0.05
    seed: int = 2


class ChunkedLinearCrossEntropy(torch.autograd.Function):
    """Loss of each token for hidden @ weight.T; the gradients are made chunk by chunk in forward."""

    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk):
        loss = hidden.new_zeros(hidden.size(0))
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight)
        for start in range(0, hidden.size(0), chunk):
            part = slice(start, start + chunk)
            h, y = hidden[part], labels[part]
            keep = y != IGNORE
            y = y.clamp(min=0)
            logits = h @ weight.t()
            logp = torch.log_softmax(logits, dim=-1)
            loss[part] = -logp.gather(1, y[:, None]).squeeze(1) * keep
            dlogits = logp.exp()
            dlogits[torch.arange(len(y)), y] -= 1
            dlogits *= keep[:, None]
            grad_hidden[part] = dlogits @ weight
            grad_weight += dlogits.t() @ h
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_output[:, None], grad_weight * grad_output.mean(), None, None


def target(hidden, weight, labels):
    return ChunkedLinearCrossEntropy.apply(hidden, weight, labels, 4)


def make_inputs():
    gen = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 5, generator=gen, requires_grad=True)
    weight = torch.randn(7, 5, generator=gen, requires_grad=True)
    labels = torch.tensor([1, 3, 0, IGNORE, 6, 2])
    return hidden, weight, labels


class RecurrentLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.hidden)
        self.rnn = nn.GRU(cfg.hidden, cfg.hidden, batch_first=True)
        self.lm_head = nn.Linear(cfg.hidden, cfg.vocab, bias=False)

    def forward(self, ids):
        return self.rnn(self.embed(ids))[0]


def batch_of(cfg, gen):
    """Half of each row is a random prompt, the other half counts on from its last token."""
    half = cfg.seq_len // 2
    prompt = torch.randint(0, cfg.vocab, (cfg.batch, half), generator=gen)
    answer = (prompt[:, -1:] + 1 + torch.arange(half + 1)) % cfg.vocab
    seq = torch.cat([prompt, answer], dim=1)
    weights = torch.full((cfg.batch, cfg.seq_len), cfg.prompt_weight)
    weights[:, half - 1:] = 1.0
    return seq[:, :-1], seq[:, 1:], weights


def weighted_loss(model, batch, cfg):
    ids, labels, weights = batch
    hidden = model(ids).flatten(0, 1)
    losses = ChunkedLinearCrossEntropy.apply(hidden, model.lm_head.weight, labels.flatten(), cfg.chunk)
    w = weights.flatten()
    return (losses * w).sum() / w.sum()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    model = RecurrentLM(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        loss = weighted_loss(model, batch_of(cfg, gen), cfg)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 or step == cfg.steps - 1:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        val = weighted_loss(model, batch_of(cfg, torch.Generator().manual_seed(50)), cfg).item()
    print(f"validation {val:.4f}")
    return {"val": val}


if __name__ == "__main__":
    main()
