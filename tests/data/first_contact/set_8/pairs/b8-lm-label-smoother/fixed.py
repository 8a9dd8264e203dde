"""Train a small causal language model with a Trainer that follows the usual arguments object."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

IGNORE = -100


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 8
    learning_rate: float = 0.5
    max_grad_norm: float = 1.0
    label_smoothing_factor: float = 0.1
    num_train_epochs: int = 3
    logging_steps: int = 4
    seed: int = 11


class LabelSmoother:
    def __init__(self, epsilon=0.1, ignore_index=IGNORE):
        self.epsilon = epsilon
        self.ignore_index = ignore_index

    def __call__(self, logits, labels, num_items_in_batch=None):
        logits = logits[..., :-1, :].contiguous()
        labels = labels[..., 1:].contiguous()
        log_probs = -F.log_softmax(logits, dim=-1)
        labels = labels.unsqueeze(-1)
        padding_mask = labels.eq(self.ignore_index)
        labels = labels.clamp(min=0)
        nll_loss = log_probs.gather(dim=-1, index=labels).masked_fill(padding_mask, 0.0)
        smoothed_loss = log_probs.sum(dim=-1, keepdim=True).masked_fill(padding_mask, 0.0)
        num_active_elements = padding_mask.numel() - padding_mask.long().sum()
        if num_items_in_batch is not None:
            num_active_elements = num_items_in_batch
        nll_loss = nll_loss.sum() / num_active_elements
        smoothed_loss = smoothed_loss.sum() / (num_active_elements * log_probs.shape[-1])
        return (1 - self.epsilon) * nll_loss + self.epsilon * smoothed_loss


class TinyCausalLM(nn.Module):
    def __init__(self, vocab_size=40, hidden=32):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab_size, bias=False)

    def forward(self, input_ids, labels=None, num_items_in_batch=None):
        hidden, _ = self.rnn(self.embed_tokens(input_ids))
        logits = self.lm_head(self.norm(hidden))
        loss = None
        if labels is not None:
            reduction = "sum" if num_items_in_batch is not None else "mean"
            loss = F.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE, reduction=reduction
            )
            if num_items_in_batch is not None:
                loss = loss / num_items_in_batch
        return loss, logits


def make_corpus(n, vocab_size=40, max_length=14, seed=0):
    rng = np.random.default_rng(seed)
    step = rng.integers(1, 5, size=vocab_size)
    samples = []
    for _ in range(n):
        length = int(rng.integers(5, max_length))
        ids = [int(rng.integers(1, vocab_size))]
        for _ in range(length - 1):
            ids.append(int((ids[-1] * 3 + step[ids[-1]]) % vocab_size))
        samples.append(ids)
    return samples


def collate(samples):
    width = max(len(s) for s in samples)
    input_ids = torch.zeros(len(samples), width, dtype=torch.long)
    labels = torch.full((len(samples), width), IGNORE)
    for i, s in enumerate(samples):
        input_ids[i, : len(s)] = torch.tensor(s)
        labels[i, : len(s)] = torch.tensor(s)
    return {"input_ids": input_ids, "labels": labels}


class Trainer:
    def __init__(self, model, args, train_dataset):
        self.model = model
        self.args = args
        self.train_dataset = train_dataset
        self.label_smoother = LabelSmoother(args.label_smoothing_factor) if args.label_smoothing_factor else None
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
        self.history = []

    def get_train_dataloader(self):
        generator = torch.Generator().manual_seed(self.args.seed)
        return DataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            shuffle=True,
            collate_fn=collate,
            generator=generator,
        )

    def get_batch_samples(self, iterator, count):
        batches = []
        for _ in range(count):
            try:
                batches.append(next(iterator))
            except StopIteration:
                break
        num_items = sum(int((b["labels"][:, 1:] != IGNORE).sum()) for b in batches)
        return batches, num_items

    def compute_loss(self, model, inputs, num_items_in_batch=None):
        if self.label_smoother is not None:
            labels = inputs.pop("labels")
            _, logits = model(**inputs)
            return self.label_smoother(logits, labels, num_items_in_batch)
        loss, _ = model(**inputs, num_items_in_batch=num_items_in_batch)
        return loss

    def training_step(self, inputs, num_items_in_batch):
        self.model.train()
        loss = self.compute_loss(self.model, inputs, num_items_in_batch=num_items_in_batch)
        loss.backward()
        return loss.detach()

    def train(self):
        global_step = 0
        for _ in range(self.args.num_train_epochs):
            iterator = iter(self.get_train_dataloader())
            while True:
                batches, num_items = self.get_batch_samples(iterator, self.args.gradient_accumulation_steps)
                if not batches:
                    break
                tr_loss = sum(self.training_step(inputs, num_items) for inputs in batches)
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
                global_step += 1
                self.history.append((float(tr_loss), float(norm)))
                if global_step % self.args.logging_steps == 0:
                    print(f"step {global_step} loss {float(tr_loss):.4f} grad_norm {float(norm):.4f}")


def main():
    args = TrainingArguments()
    torch.manual_seed(args.seed)
    trainer = Trainer(TinyCausalLM(), args, make_corpus(160))
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
