"""Pretrain a tiny language model, then fine-tune the checkpoint on a new style to save memory in bfloat16."""
import io
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ScriptArguments:
    seed: int = 14
    vocab: int = 24
    dim: int = 32
    context: int = 4
    pretrain_steps: int = 150
    finetune_steps: int = 250
    batch_size: int = 64
    learning_rate: float = 1e-4
    warmup_ratio: float = 0.05
    torch_dtype: str = "bfloat16"


class NgramLM(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        self.norm = nn.LayerNorm(args.context * args.dim)
        self.up = nn.Linear(args.context * args.dim, 64)
        self.down = nn.Linear(64, args.dim)
        self.lm_head = nn.Linear(args.dim, args.vocab, bias=False)

    def forward(self, ids):
        h = self.norm(self.embed(ids).flatten(1))
        return self.lm_head(self.down(F.gelu(self.up(h))))


class MarkovText:
    def __init__(self, args, seed, shift=0):
        g = torch.Generator().manual_seed(0)
        table = torch.randn(args.vocab, args.vocab, generator=g) * 2.0
        self.probs = table.roll(shift, 1).softmax(-1)
        self.context = args.context
        self.g = torch.Generator().manual_seed(seed)

    def batch(self, n):
        ids = torch.randint(len(self.probs), (n, 1), generator=self.g)
        for _ in range(self.context):
            nxt = torch.multinomial(self.probs[ids[:, -1]], 1, generator=self.g)
            ids = torch.cat([ids, nxt], 1)
        return ids[:, :-1], ids[:, -1]


def pretrain(args):
    model = NgramLM(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = MarkovText(args, 1)
    for _ in range(args.pretrain_steps):
        x, y = data.batch(args.batch_size)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer


def load_model(args, buffer):
    buffer.seek(0)
    model = NgramLM(args)
    model.load_state_dict(torch.load(buffer, weights_only=True))
    return model.to(getattr(torch, args.torch_dtype))


class SFTTrainer:
    def __init__(self, args, model):
        self.args, self.model = args, model
        decay = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=args.learning_rate
        )
        warmup = max(1, int(args.warmup_ratio * args.finetune_steps))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / warmup))
        self.data = MarkovText(args, 2, shift=1)
        self.val = MarkovText(args, 3, shift=1).batch(512)

    def compute_loss(self, x, y):
        return F.cross_entropy(self.model(x).float(), y)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        return self.compute_loss(*self.val).item()

    def train(self):
        for step in range(self.args.finetune_steps):
            self.model.train()
            loss = self.compute_loss(*self.data.batch(self.args.batch_size))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f} eval {self.evaluate():.4f}")
        return self.evaluate()


def main():
    args = ScriptArguments()
    torch.manual_seed(args.seed)
    checkpoint = pretrain(args)
    model = load_model(args, checkpoint)
    start = {n: p.detach().float().clone() for n, p in model.named_parameters()}
    val = SFTTrainer(args, model).train()
    print(f"final eval {val:.4f}")
    return {"val": val, "start": start, "model": model}


if __name__ == "__main__":
    main()
