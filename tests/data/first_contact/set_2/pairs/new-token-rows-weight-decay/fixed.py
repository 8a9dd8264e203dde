"""Learn embeddings of newly added tokens; everything that was pretrained stays as it is."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Args:
    vocab: int = 48
    new_tokens: int = 2
    width: int = 24
    classes: int = 6
    pretrain_steps: int = 150
    steps: int = 200
    lr: float = 2e-2
    weight_decay: float = 1e-1
    batch: int = 32
    seed: int = 8


class TextEncoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.width)
        self.mix = nn.Sequential(nn.Linear(args.width, args.width), nn.GELU(), nn.Linear(args.width, args.width))
        self.head = nn.Linear(args.width, args.classes)

    def resize_token_embeddings(self, size):
        old = self.embed
        self.embed = nn.Embedding(size, old.embedding_dim)
        with torch.no_grad():
            self.embed.weight[:old.num_embeddings] = old.weight
            self.embed.weight[old.num_embeddings:] = old.weight.mean(0)
        return self.embed

    def forward(self, ids):
        x = self.embed(ids)
        return self.head((x + self.mix(x)).mean(1))


def batch(args, g, topics):
    y = torch.randint(args.classes, (args.batch,), generator=g)
    noise = torch.randint(args.vocab, (args.batch, 8), generator=g)
    keep = torch.rand(args.batch, 8, generator=g) < 0.4
    return torch.where(keep, topics[y][:, :8], noise), y


def pretrain(model, args, g, topics):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(args.pretrain_steps):
        ids, y = batch(args, g, topics)
        loss = F.cross_entropy(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(model, args, topics):
    g = torch.Generator().manual_seed(99)
    hits = [(model(ids).argmax(-1) == y).float().mean() for ids, y in (batch(args, g, topics) for _ in range(20))]
    return torch.stack(hits).mean().item()


class TokenTrainer:
    def __init__(self, model, args):
        self.model, self.args = model, args
        embed = model.resize_token_embeddings(args.vocab + args.new_tokens)
        model.requires_grad_(False)
        embed.weight.requires_grad_(True)
        self.mask = torch.zeros(args.vocab + args.new_tokens, 1)
        self.mask[args.vocab:] = 1.0
        embed.weight.register_hook(lambda grad: grad * self.mask)
        self.optimizer = torch.optim.AdamW([embed.weight], lr=args.lr, weight_decay=0.0)

    def train(self, g, topics):
        for step in range(self.args.steps):
            ids, y = batch(self.args, g, topics)
            y = y.clamp(max=self.args.new_tokens - 1)
            ids[:, 0] = self.args.vocab + y
            loss = F.cross_entropy(self.model(ids), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 50 == 49:
                print(f"step {step + 1} loss {loss.item():.4f}")
        return loss.item()


def main():
    args = Args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    topics = torch.randint(args.vocab, (args.classes, 8), generator=g)
    model = TextEncoder(args)
    print(f"pretrained loss {pretrain(model, args, g, topics):.4f}")
    before, norm = accuracy(model, args, topics), model.embed.weight.norm().item()
    TokenTrainer(model, args).train(g, topics)
    after = accuracy(model, args, topics)
    kept = model.embed.weight[:args.vocab].norm().item()
    print(f"old task accuracy {before:.3f} -> {after:.3f}")
    return {"before": before, "after": after, "norm_before": norm, "norm_after": kept}


if __name__ == "__main__":
    main()
