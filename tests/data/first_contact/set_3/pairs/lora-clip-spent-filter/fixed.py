"""LoRA fine-tuning of a small pretrained encoder on a sentence classification task."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainArgs:
    vocab: int = 40
    dim: int = 24
    rank: int = 4
    lora_alpha: float = 16.0
    classes: int = 4
    steps: int = 60
    batch_size: int = 16
    learning_rate: float = 0.3
    max_grad_norm: float = 0.05
    warmup_steps: int = 5
    log_every: int = 20
    seed: int = 11


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.t() @ self.lora_B.t()) * self.scaling


class Encoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        self.query = nn.Linear(args.dim, args.dim)
        self.value = nn.Linear(args.dim, args.dim)
        self.out = nn.Linear(args.dim, args.dim)
        self.norm = nn.LayerNorm(args.dim)
        self.classifier = nn.Linear(args.dim, args.classes)

    def forward(self, ids):
        x = self.embed(ids)
        att = torch.softmax(self.query(x) @ x.transpose(1, 2) / x.size(-1) ** 0.5, dim=-1)
        x = self.norm(x + self.out(F.gelu(att @ self.value(x))))
        return self.classifier(x.mean(dim=1))


def inject_lora(model, args):
    for p in model.parameters():
        p.requires_grad_(False)
    for name in ("query", "value", "out"):
        setattr(model, name, LoRALinear(getattr(model, name), args.rank, args.lora_alpha))
    for p in model.classifier.parameters():
        p.requires_grad_(True)
    return model


@torch.no_grad()
def clip_gradients(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    total = torch.sqrt(sum((g.pow(2).sum() for g in grads), torch.zeros(())))
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale)
    return total


def sample_batch(args, gen):
    ids = torch.randint(0, args.vocab, (args.batch_size, 12), generator=gen)
    labels = (ids < 10).sum(1).clamp(max=args.classes - 1)
    return ids, labels


@torch.no_grad()
def evaluate(model, args):
    gen = torch.Generator().manual_seed(999)
    model.eval()
    hits = total = 0
    for _ in range(8):
        ids, labels = sample_batch(args, gen)
        hits += (model(ids).argmax(-1) == labels).sum().item()
        total += len(labels)
    model.train()
    return hits / total


def main():
    args = TrainArgs()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    model = inject_lora(Encoder(args), args)
    start = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    lora_layers = list(filter(lambda p: p.requires_grad, model.parameters()))
    optimizer = torch.optim.SGD(lora_layers, lr=args.learning_rate, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / args.warmup_steps) * (1 - s / (args.steps + 1)))

    for step in range(args.steps):
        ids, labels = sample_batch(args, gen)
        loss = F.cross_entropy(model(ids), labels)
        loss.backward()
        clip_gradients(lora_layers, args.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.log_every == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.4f}")
    acc = evaluate(model, args)
    moved = math.sqrt(sum((p.detach() - start[n]).pow(2).sum().item()
                          for n, p in model.named_parameters() if n in start))
    print(f"accuracy {acc:.3f} adapter drift {moved:.3f}")
    return {"adapter_drift": moved, "acc": acc}


if __name__ == "__main__":
    main()
