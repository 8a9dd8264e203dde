"""Sequence classification: LoRA adapters in a frozen transformer, activations recomputed to save memory."""
import math
import warnings
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore", category=UserWarning)


@dataclass
class ModelArgs:
    vocab: int = 30
    dim: int = 24
    layers: int = 2
    rank: int = 4
    alpha: int = 16
    num_labels: int = 3


@dataclass
class TrainingArgs:
    max_steps: int = 50
    per_device_batch_size: int = 12
    learning_rate: float = 1e-2
    max_grad_norm: float = 1.0
    gradient_checkpointing: bool = True
    logging_steps: int = 15
    seed: int = 13


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


class DecoderLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dim, dim) for _ in range(3))
        self.o_proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        a = F.scaled_dot_product_attention(self.q_proj(h), self.k_proj(h), self.v_proj(h), is_causal=True)
        x = x + self.o_proj(a)
        return x + self.mlp(self.norm2(x))


class SequenceClassifier(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab, args.dim)
        self.layers = nn.ModuleList(DecoderLayer(args.dim) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.dim)
        self.score = nn.Linear(args.dim, args.num_labels)
        self.gradient_checkpointing = False

    def gradient_checkpointing_enable(self):
        self.gradient_checkpointing = True

    def enable_input_require_grads(self):
        self.embed_tokens.register_forward_hook(lambda module, args, output: output.requires_grad_(True))

    def forward(self, input_ids, labels=None):
        h = self.embed_tokens(input_ids)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                h = checkpoint(layer, h, use_reentrant=True)
            else:
                h = layer(h)
        logits = self.score(self.norm(h)[:, -1])
        return logits if labels is None else F.cross_entropy(logits, labels)


def get_peft_model(model, args):
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer, name, LoRALinear(getattr(layer, name), args.rank, args.alpha))
    model.score.requires_grad_(True)
    return model


def make_batch(n, args, gen):
    ids = torch.randint(0, args.vocab, (n, 10), generator=gen)
    return ids, ids[:, 2] % args.num_labels


def build(margs, targs):
    model = get_peft_model(SequenceClassifier(margs), margs)
    if targs.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    return model


def main():
    margs, targs = ModelArgs(), TrainingArgs()
    torch.manual_seed(targs.seed)
    gen = torch.Generator().manual_seed(targs.seed)
    model = build(margs, targs)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=targs.learning_rate)
    model.train()
    for step in range(targs.max_steps):
        loss = model(*make_batch(targs.per_device_batch_size, margs, gen))
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, targs.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % targs.logging_steps == 0 or step == targs.max_steps - 1:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        ids, labels = make_batch(300, margs, torch.Generator().manual_seed(88))
        accuracy = (model(ids).argmax(-1) == labels).float().mean().item()
    print(f"accuracy {accuracy:.3f}")
    return {"accuracy": accuracy, "adapter": {n: p for n, p in model.named_parameters() if "lora" in n}}


if __name__ == "__main__":
    main()
