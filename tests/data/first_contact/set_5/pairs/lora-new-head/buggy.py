"""Low-rank adaptation of a pretrained encoder to a new task with a new classification layer."""
from dataclasses import dataclass, field
from typing import List, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LoraConfig:
    r: int = 2
    alpha: int = 4
    target_modules: List[str] = field(default_factory=list)
    modules_to_save: Optional[List[str]] = None


class LoraLinear(nn.Module):
    def __init__(self, base, r, alpha):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = alpha / r

    def forward(self, x):
        return self.base_layer(x) + self.scaling * self.lora_B(self.lora_A(x))


def get_peft_model(model, config):
    """Freezes everything, adapts `target_modules` and trains `modules_to_save` in full."""
    for p in model.parameters():
        p.requires_grad = False
    for name, module in list(model.named_modules()):
        leaf = name.rsplit(".", 1)[-1]
        if isinstance(module, nn.Linear) and leaf in config.target_modules:
            parent = model.get_submodule(name.rsplit(".", 1)[0]) if "." in name else model
            setattr(parent, leaf, LoraLinear(module, config.r, config.alpha))
    for name in config.modules_to_save or []:
        for p in model.get_submodule(name).parameters():
            p.requires_grad = True
    return model


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        return self.norm(x + F.scaled_dot_product_attention(q, k, v))


class SequenceClassifier(nn.Module):
    def __init__(self, classes, dim=24, vocab=30):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.block = Block(dim)
        self.score = nn.Linear(dim, classes)

    def forward(self, tokens):
        return self.score(self.block(self.embed(tokens)).mean(1))


def build(pretrained):
    model = SequenceClassifier(classes=6)
    own = {k: v for k, v in pretrained.items() if not k.startswith("score")}
    model.load_state_dict(own, strict=False)
    targets = ["query", "value"]
    config = LoraConfig(target_modules=targets, modules_to_save=targets.append("score"))
    return get_peft_model(model, config)


def fine_tune(model, steps=60, lr=1e-2):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    tokens = torch.randint(0, 30, (256, 10))
    labels = tokens.float().mean(1).sub(9).div(2).long().clamp(0, 5)
    model.train()
    for step in range(steps):
        pick = torch.randint(0, 256, (64,))
        loss = F.cross_entropy(model(tokens[pick]), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    return F.cross_entropy(model(tokens), labels).item()


def main():
    torch.manual_seed(31)
    pretrained = SequenceClassifier(classes=2).state_dict()
    model = build(pretrained)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    final = fine_tune(model)
    print(f"{trainable} trainable parameters, final loss {final:.4f}")
    return model, final


if __name__ == "__main__":
    main()
