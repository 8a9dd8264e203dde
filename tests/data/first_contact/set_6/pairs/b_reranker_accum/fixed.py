"""Reranker fine-tuning with a trainer that accumulates gradients."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainingArguments:
    learning_rate: float = 0.05
    num_train_epochs: int = 12
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 8
    max_grad_norm: float = 10.0


class Reranker(nn.Module):
    def __init__(self, vocab=60, dim=24):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.score = nn.Sequential(nn.Linear(3 * dim, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, query, doc):
        q, d = self.embed(query), self.embed(doc)
        return self.score(torch.cat([q, d, q * d], dim=-1)).squeeze(-1)


class PairDataset:
    def __init__(self, n=80, vocab=60, seed=0):
        g = torch.Generator().manual_seed(seed)
        topic = torch.randint(0, 6, (n,), generator=g)
        other = (topic + torch.randint(1, 6, (n,), generator=g)) % 6
        label = (torch.rand(n, generator=g) < 0.5).float()
        doc_topic = torch.where(label == 1, topic, other)
        self.query = topic[:, None] * 10 + torch.randint(0, 10, (n, 5), generator=g)
        self.doc = doc_topic[:, None] * 10 + torch.randint(0, 10, (n, 9), generator=g)
        self.label = label

    def batches(self, size, generator):
        order = torch.randperm(len(self.label), generator=generator)
        for i in range(0, len(order), size):
            idx = order[i:i + size]
            yield {"query": self.query[idx], "doc": self.doc[idx], "labels": self.label[idx]}


class Trainer:
    def __init__(self, model, args, train_dataset):
        self.model, self.args = model, args
        self.train_dataset = train_dataset
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self.global_step = 0
        self.log_history = []

    def compute_loss(self, inputs):
        scores = self.model(inputs["query"], inputs["doc"])
        loss = F.binary_cross_entropy_with_logits(scores, inputs["labels"])
        return loss / self.current_gradient_accumulation_steps

    def training_step(self, inputs):
        self.model.train()
        loss = self.compute_loss(inputs)
        loss.backward()
        return loss.detach()

    def _windows(self, batches):
        window = []
        for batch in batches:
            window.append(batch)
            if len(window) == self.args.gradient_accumulation_steps:
                yield window
                window = []
        if window:
            yield window

    def train(self):
        g = torch.Generator().manual_seed(13)
        for epoch in range(self.args.num_train_epochs):
            epoch_loss, count = 0.0, 0
            batches = self.train_dataset.batches(self.args.per_device_train_batch_size, g)
            for window in self._windows(batches):
                self.current_gradient_accumulation_steps = len(window)
                self.optimizer.zero_grad()
                for inputs in window:
                    epoch_loss += self.training_step(inputs).item()
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self.global_step += 1
                count += 1
                self.log_history.append((self.global_step, len(window), norm.item()))
            if epoch % 4 == 0:
                print(f"epoch {epoch:2d}  loss {epoch_loss / count:.4f}  grad norm {norm:.4f}")
        return self.global_step


def main():
    torch.manual_seed(0)
    args = TrainingArguments()
    data = PairDataset()
    trainer = Trainer(Reranker(), args, data)
    steps = trainer.train()
    trainer.model.eval()
    with torch.no_grad():
        pred = trainer.model(data.query, data.doc) > 0
    print(f"{steps} updates, train accuracy {(pred.float() == data.label).float().mean():.3f}")
    return trainer


if __name__ == "__main__":
    main()
