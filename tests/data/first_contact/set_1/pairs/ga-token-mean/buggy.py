"""Instruction tuning of a tiny causal language model with gradient accumulation."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

IGNORE = -100
PAD = 0


@dataclass
class TrainingArguments:
    seed: int = 11
    vocab_size: int = 40
    d_model: int = 32
    max_steps: int = 60
    per_device_batch_size: int = 1
    gradient_accumulation_steps: int = 8
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    max_grad_norm: float = 10.0
    logging_steps: int = 15


class TinyLM(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab_size, args.d_model, padding_idx=PAD)
        self.rnn = nn.GRU(args.d_model, args.d_model, batch_first=True)
        self.norm = nn.LayerNorm(args.d_model)
        self.lm_head = nn.Linear(args.d_model, args.vocab_size)

    def forward(self, input_ids):
        hidden, _ = self.rnn(self.embed(input_ids))
        return self.lm_head(self.norm(hidden))


def lm_loss(logits, labels, reduction="mean"):
    shift_logits = logits[:, :-1].reshape(-1, logits.size(-1))
    shift_labels = labels[:, 1:].reshape(-1)
    return F.cross_entropy(shift_logits, shift_labels, ignore_index=IGNORE, reduction=reduction)


class InstructionData:
    """A prompt that is masked out, then an answer: short answers repeat a token, long ones count up."""

    def __init__(self, args, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.samples = []
        for _ in range(n):
            long = torch.rand(1, generator=g).item() < 0.3
            start = torch.randint(3, args.vocab_size, (1,), generator=g).item()
            if long:
                answer = [3 + (start + k - 3) % (args.vocab_size - 3) for k in range(1, 25)]
            else:
                answer = [start, start]
            ids = [1 if long else 2, start] + answer
            labels = [IGNORE, IGNORE] + answer
            self.samples.append((ids, labels))

    def collate(self, batch):
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([i + [PAD] * (width - len(i)) for i, _ in batch])
        labels = torch.tensor([t + [IGNORE] * (width - len(t)) for _, t in batch])
        return {"input_ids": ids, "labels": labels}

    def batches(self, size, generator):
        while True:
            order = torch.randperm(len(self.samples), generator=generator).tolist()
            for i in range(0, len(order) - size + 1, size):
                yield self.collate([self.samples[k] for k in order[i:i + size]])


class Trainer:
    def __init__(self, args, model, train_data, eval_data):
        self.args, self.model = args, model
        self.train_data, self.eval_data = train_data, eval_data
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.LinearLR(
            self.optimizer, start_factor=1.0, end_factor=0.1, total_iters=args.max_steps
        )

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        batch = self.eval_data.collate(self.eval_data.samples)
        return lm_loss(self.model(batch["input_ids"]), batch["labels"]).item()

    def train(self):
        args = self.args
        stream = self.train_data.batches(args.per_device_batch_size, torch.Generator().manual_seed(args.seed))
        for step in range(args.max_steps):
            self.model.train()
            window = [next(stream) for _ in range(args.gradient_accumulation_steps)]
            running = 0.0
            self.optimizer.zero_grad()
            for batch in window:
                logits = self.model(batch["input_ids"])
                loss = lm_loss(logits, batch["labels"]) / len(window)
                loss.backward()
                running += loss.item()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), args.max_grad_norm)
            self.optimizer.step()
            self.scheduler.step()
            if step % args.logging_steps == 0:
                print(f"step {step} loss {running:.4f} grad_norm {norm:.3f} eval {self.evaluate():.4f}")
        return self.evaluate()


def main():
    args = TrainingArguments()
    torch.manual_seed(args.seed)
    trainer = Trainer(args, TinyLM(args), InstructionData(args, 400, 1), InstructionData(args, 100, 2))
    return {"eval_loss": trainer.train(), "trainer": trainer}


if __name__ == "__main__":
    main()
