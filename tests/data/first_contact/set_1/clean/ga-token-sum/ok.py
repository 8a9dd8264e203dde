"""Sequence tagging with gradient accumulation over buckets of different length and an exact token mean."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {"seed": 3, "epochs": 5, "micro_batch": 4, "accumulate": 6, "lr": 5e-3, "max_norm": 1.0, "tags": 5}
PAD = -1


class Tagger(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, tags)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def make_sentences(n, seed, tags):
    g = torch.Generator().manual_seed(seed)
    sentences = []
    for _ in range(n):
        length = int(torch.randint(3, 15, (1,), generator=g))
        words = torch.randint(1, 20, (length,), generator=g)
        labels = (words + torch.cat([words.new_zeros(1), words[:-1]])) % tags
        sentences.append((words, labels))
    return sorted(sentences, key=lambda s: len(s[0]))


def collate(batch):
    words = nn.utils.rnn.pad_sequence([w for w, _ in batch], batch_first=True)
    labels = nn.utils.rnn.pad_sequence([t for _, t in batch], batch_first=True, padding_value=PAD)
    return words, labels


class Accumulator:
    """Adds up gradients of summed losses and divides by the number of tokens once, just before the step."""

    def __init__(self, model, optimizer, scheduler, cfg):
        self.model, self.optimizer, self.scheduler, self.cfg = model, optimizer, scheduler, cfg
        self.tokens = self.micro = 0

    def add(self, words, labels):
        logits = self.model(words)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction="sum")
        loss.backward()
        n = int((labels != PAD).sum())
        self.tokens += n
        self.micro += 1
        if self.micro == self.cfg["accumulate"]:
            self.flush()
        return loss.item(), n

    def flush(self):
        if self.micro == 0:
            return
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.div_(self.tokens)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg["max_norm"])
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.tokens = self.micro = 0


def main(cfg=CFG):
    torch.manual_seed(cfg["seed"])
    model = Tagger(cfg["tags"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    data = make_sentences(202, 1, cfg["tags"])
    batches = [collate(data[i:i + cfg["micro_batch"]]) for i in range(0, len(data), cfg["micro_batch"])]
    updates = cfg["epochs"] * -(-len(batches) // cfg["accumulate"])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * cfg["lr"], total_steps=updates)
    accumulator = Accumulator(model, optimizer, scheduler, cfg)
    val_words, val_labels = collate(make_sentences(60, 2, cfg["tags"]))
    for epoch in range(cfg["epochs"]):
        model.train()
        total = count = 0
        for k in torch.randperm(len(batches)).tolist():
            loss, n = accumulator.add(*batches[k])
            total, count = total + loss, count + n
        accumulator.flush()
        model.eval()
        with torch.no_grad():
            val = F.cross_entropy(model(val_words).flatten(0, 1), val_labels.flatten(), ignore_index=PAD).item()
        print(f"epoch {epoch} train {total / count:.4f} val {val:.4f}")
    return val


if __name__ == "__main__":
    main()
