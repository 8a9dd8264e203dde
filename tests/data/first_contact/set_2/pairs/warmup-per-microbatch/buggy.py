"""Fine-tune a small text classifier with warmup, linear decay and gradient accumulation."""
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainingArguments:
    learning_rate: float = 5e-3
    num_train_epochs: int = 4
    per_device_batch_size: int = 8
    gradient_accumulation_steps: int = 8
    warmup_ratio: float = 0.1
    max_grad_norm: float = 1.0
    logging_steps: int = 8
    seed: int = 42


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def factor(step):
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))

    return LambdaLR(optimizer, factor)


class TextClassifier(nn.Module):
    def __init__(self, vocab=64, width=32, classes=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.encoder = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.classifier = nn.Linear(width, classes)

    def forward(self, input_ids):
        return self.classifier(self.encoder(self.embed(input_ids)).mean(1))


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    ids = torch.randint(64, (n, 12), generator=g)
    marker = torch.rand(n, 12, generator=g) < 0.3
    return TensorDataset(torch.where(marker, y[:, None] * 16 + ids % 16, ids), y)


class Trainer:
    def __init__(self, model, args, train_set, eval_set):
        self.model, self.args, self.eval_set = model, args, eval_set
        self.loader = DataLoader(train_set, args.per_device_batch_size, shuffle=True, generator=torch.Generator().manual_seed(args.seed))
        self.updates_per_epoch = math.ceil(len(self.loader) / args.gradient_accumulation_steps)
        self.total_updates = self.updates_per_epoch * args.num_train_epochs
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
        self.scheduler = get_linear_schedule_with_warmup(
            self.optimizer, int(args.warmup_ratio * self.total_updates), self.total_updates)
        self.global_step = 0
        self.lrs = []

    def training_step(self, ids, labels):
        loss = F.cross_entropy(self.model(ids), labels) / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.item() * self.args.gradient_accumulation_steps

    def train(self):
        for epoch in range(self.args.num_train_epochs):
            self.model.train()
            running = 0.0
            self.optimizer.zero_grad()
            for step, (ids, labels) in enumerate(self.loader):
                running += self.training_step(ids, labels)
                if (step + 1) % self.args.gradient_accumulation_steps == 0 or step + 1 == len(self.loader):
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
                    self.lrs.append(self.optimizer.param_groups[0]["lr"])
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.global_step += 1
                self.scheduler.step()
            print(f"epoch {epoch} loss {running / len(self.loader):.4f} eval {self.evaluate():.4f}")

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        ids, labels = self.eval_set.tensors
        return F.cross_entropy(self.model(ids), labels).item()


def main():
    args = TrainingArguments()
    torch.manual_seed(args.seed)
    trainer = Trainer(TextClassifier(), args, make_data(512, 1), make_data(128, 2))
    trainer.train()
    return {"eval_loss": trainer.evaluate(), "lrs": trainer.lrs, "updates": trainer.global_step}


if __name__ == "__main__":
    main()
