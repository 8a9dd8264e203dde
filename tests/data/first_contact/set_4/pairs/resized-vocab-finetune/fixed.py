"""Domain fine-tuning of a tied language model after some special tokens were added to the vocabulary."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainingArguments:
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    max_steps: int = 80
    warmup_steps: int = 10
    batch_size: int = 16
    logging_steps: int = 40
    seed: int = 0


class Tokenizer:
    def __init__(self, words):
        self.vocab = {w: i for i, w in enumerate(words)}

    def __len__(self):
        return len(self.vocab)

    def add_special_tokens(self, tokens):
        for token in tokens:
            self.vocab.setdefault(token, len(self.vocab))

    def encode(self, words):
        return [self.vocab[w] for w in words]


class TiedLM(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        self.tie_weights()

    def tie_weights(self):
        self.lm_head.weight = self.embed_tokens.weight

    def resize_token_embeddings(self, vocab):
        old = self.embed_tokens
        self.embed_tokens = nn.Embedding(vocab, old.embedding_dim)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)
        with torch.no_grad():
            self.embed_tokens.weight[: old.num_embeddings] = old.weight
        self.lm_head = nn.Linear(old.embedding_dim, vocab, bias=False)
        self.tie_weights()

    def forward(self, input_ids, labels=None):
        logits = self.lm_head(self.norm(self.rnn(self.embed_tokens(input_ids))[0]))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits


def get_optimizer(model, args):
    decay = [p for n, p in model.named_parameters() if p.ndim > 1]
    no_decay = [p for n, p in model.named_parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": args.weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=args.warmup_steps)
    return optimizer, warmup


def dialogues(tokenizer, n, generator):
    """<user> word word <bot> the same words <end>"""
    words = [w for w in tokenizer.vocab if not w.startswith("<")]
    rows = []
    for _ in range(n):
        picked = [words[int(i)] for i in torch.randint(len(words), (2,), generator=generator)]
        rows.append(tokenizer.encode(["<user>", *picked, "<bot>", *picked, "<end>"]))
    return torch.tensor(rows)


def train(model, tokenizer, args, optimizer, scheduler):
    model.train()
    generator = torch.Generator().manual_seed(args.seed)
    for step in range(1, args.max_steps + 1):
        batch = dialogues(tokenizer, args.batch_size, generator)
        loss, _ = model(batch, labels=batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        if step % args.logging_steps == 0:
            print(f"step {step} loss {loss.item():.4f}")


@torch.no_grad()
def evaluate(model, tokenizer):
    model.eval()
    batch = dialogues(tokenizer, 64, torch.Generator().manual_seed(123))
    return model(batch, labels=batch)[0].item()


def main(args=None):
    args = args or TrainingArguments()
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer(["<pad>"] + [f"w{i}" for i in range(12)])
    model = TiedLM(len(tokenizer))

    tokenizer.add_special_tokens(["<user>", "<bot>", "<end>"])
    model.resize_token_embeddings(len(tokenizer))
    optimizer, scheduler = get_optimizer(model, args)

    before = model.embed_tokens.weight.detach().clone()
    train(model, tokenizer, args, optimizer, scheduler)
    val = evaluate(model, tokenizer)
    moved = (model.embed_tokens.weight - before).abs().max().item()
    print(f"eval loss {val:.4f}")
    return {"model": model, "val": val, "moved": moved}


if __name__ == "__main__":
    main()
