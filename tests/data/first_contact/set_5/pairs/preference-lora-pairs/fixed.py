"""Preference optimisation of a small causal model; the reference is the same model without its adapters."""
import contextlib
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArguments:
    vocab: int = 20
    dim: int = 32
    layers: int = 2
    resid_pdrop: float = 0.1
    rank: int = 4


@dataclass
class TrainingArguments:
    beta: float = 0.5
    learning_rate: float = 5e-3
    max_steps: int = 40
    batch_size: int = 16
    seed: int = 0
    model: ModelArguments = field(default_factory=ModelArguments)


class AdapterLinear(nn.Module):
    def __init__(self, d_in, d_out, rank):
        super().__init__()
        self.base = nn.Linear(d_in, d_out)
        self.down = nn.Linear(d_in, rank, bias=False)
        self.up = nn.Linear(rank, d_out, bias=False)
        nn.init.zeros_(self.up.weight)
        self.base.requires_grad_(False)
        self.active = True

    def forward(self, x):
        y = self.base(x)
        return y + self.up(self.down(x)) if self.active else y


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.norm = nn.LayerNorm(a.dim)
        self.qkv = AdapterLinear(a.dim, 3 * a.dim, a.rank)
        self.out = AdapterLinear(a.dim, a.dim, a.rank)
        self.drop = nn.Dropout(a.resid_pdrop)
        self.norm.requires_grad_(False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(h))


class CausalLM(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.dim).requires_grad_(False)
        self.drop = nn.Dropout(a.resid_pdrop)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.head = nn.Linear(a.dim, a.vocab, bias=False).requires_grad_(False)

    def forward(self, ids):
        h = self.drop(self.embed(ids))
        for block in self.blocks:
            h = block(h)
        return self.head(h)

    @contextlib.contextmanager
    def disable_adapters(self):
        layers = [m for m in self.modules() if isinstance(m, AdapterLinear)]
        for m in layers:
            m.active = False
        try:
            yield
        finally:
            for m in layers:
                m.active = True


class DPOTrainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=args.learning_rate)
        self.margins = []
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def sequence_logps(self, ids):
        logp = self.model(ids[:, :-1]).log_softmax(-1)
        return logp.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)

    def compute_loss(self, chosen, rejected):
        ids = torch.cat([chosen, rejected])
        pi_c, pi_r = self.sequence_logps(ids).chunk(2)
        with torch.no_grad(), self.model.disable_adapters():
            ref_c, ref_r = self.sequence_logps(ids).chunk(2)
        margin = self.args.beta * ((pi_c - ref_c) - (pi_r - ref_r))
        self.margins.append(margin.detach())
        return -F.logsigmoid(margin).mean()

    def train(self, loader):
        self.model.train()
        for _, (chosen, rejected) in zip(range(self.args.max_steps), loader):
            loss = self.compute_loss(chosen, rejected)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield loss.item()


def preference_pairs(args):
    g = torch.Generator().manual_seed(args.seed)
    while True:
        prompt = torch.randint(10, (args.batch_size, 4), generator=g)
        good = torch.randint(10, 15, (args.batch_size, 6), generator=g)
        bad = torch.randint(15, 20, (args.batch_size, 6), generator=g)
        yield torch.cat([prompt, good], 1), torch.cat([prompt, bad], 1)


def main():
    args = TrainingArguments()
    torch.manual_seed(args.seed)
    trainer = DPOTrainer(CausalLM(args.model), args)
    losses = list(trainer.train(preference_pairs(args)))
    print("loss:", [round(v, 4) for v in losses[::8]])
    return trainer, losses


if __name__ == "__main__":
    main()
