"""Supervised fine-tuning of a tiny causal LM on prompt/answer pairs of very different length."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

IGNORE = -100


@dataclass
class SFTConfig:
    vocab: int = 24
    dim: int = 32
    max_len: int = 20
    micro_batch_size: int = 2
    gradient_accumulation_steps: int = 4
    max_steps: int = 40
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    seed: int = 21


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(self.ln2(x))


class TinyLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.max_len, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg.dim) for _ in range(2))
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ChatDataset:
    """Short answers repeat the last prompt token, long ones count upwards from it."""

    def __init__(self, cfg, seed):
        self.cfg, self.gen = cfg, torch.Generator().manual_seed(seed)

    def sample(self):
        prompt = torch.randint(2, self.cfg.vocab, (4,), generator=self.gen).tolist()
        if torch.rand((), generator=self.gen) < 0.6:
            answer = [prompt[-1]]
        else:
            n = int(torch.randint(9, 15, (), generator=self.gen))
            answer = [(prompt[-1] + i) % (self.cfg.vocab - 2) + 2 for i in range(n)]
        return prompt, answer

    def collate(self, n):
        ids = torch.zeros(n, self.cfg.max_len, dtype=torch.long)
        labels = torch.full((n, self.cfg.max_len), IGNORE)
        for i in range(n):
            prompt, answer = self.sample()
            seq = prompt + answer
            ids[i, :len(seq)] = torch.tensor(seq)
            labels[i, len(prompt):len(seq)] = torch.tensor(answer)
        return {"input_ids": ids, "labels": labels}


class SFTTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.model = TinyLM(cfg)
        self.train_set = ChatDataset(cfg, cfg.seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.learning_rate,
                                           weight_decay=cfg.weight_decay)

    def compute_loss(self, batch, num_items=None):
        logits = self.model(batch["input_ids"])[:, :-1]
        labels = batch["labels"][:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE,
                               reduction="mean" if num_items is None else "sum")
        return loss if num_items is None else loss / num_items

    def training_step(self, batches):
        total = 0.0
        for batch in batches:
            loss = self.compute_loss(batch) / len(batches)
            loss.backward()
            total += loss.item()
        return total

    def train(self):
        for step in range(self.cfg.max_steps):
            batches = [self.train_set.collate(self.cfg.micro_batch_size)
                       for _ in range(self.cfg.gradient_accumulation_steps)]
            loss = self.training_step(batches)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step % 10 == 0 or step == self.cfg.max_steps - 1:
                print(f"step {step} loss {loss:.4f}")
        return self.evaluate()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        data, tokens, nll = ChatDataset(self.cfg, 77), 0, 0.0
        for _ in range(10):
            batch = data.collate(8)
            n = int((batch["labels"][:, 1:] != IGNORE).sum())
            nll += self.compute_loss(batch).item() * n
            tokens += n
        self.model.train()
        return {"eval_nll": nll / tokens}


def main():
    metrics = SFTTrainer(SFTConfig()).train()
    print(f"eval nll per token {metrics['eval_nll']:.4f}")
    return metrics


if __name__ == "__main__":
    main()
