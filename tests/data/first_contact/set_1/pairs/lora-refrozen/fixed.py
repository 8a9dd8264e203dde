"""Sequence classification with LoRA adapters on a frozen (mock 8-bit) transformer base."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LoraConfig:
    r: int = 4
    lora_alpha: int = 8
    lora_dropout: float = 0.05
    target_modules: tuple = ("q_proj", "v_proj")
    modules_to_save: tuple = ("score",)


class Attention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.v_proj, self.o_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SequenceClassifier(nn.Module):
    def __init__(self, vocab=32, dim=32, layers=2, classes=2):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(12, dim) * 0.1)
        self.layers = nn.ModuleList([Block(dim) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.score = nn.Linear(dim, classes)

    def forward(self, ids):
        x = self.embed_tokens(ids) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.score(self.norm(x).mean(1))


class LoraLinear(nn.Module):
    def __init__(self, base, cfg):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, cfg.r, bias=False)
        self.lora_B = nn.Linear(cfg.r, base.out_features, bias=False)
        self.dropout = nn.Dropout(cfg.lora_dropout)
        self.scaling = cfg.lora_alpha / cfg.r
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling


def get_peft_model(model, cfg):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in cfg.target_modules:
                setattr(module, name, LoraLinear(child, cfg))
    for name, p in model.named_parameters():
        p.requires_grad = "lora_" in name or any(part in name for part in cfg.modules_to_save)
    return model


def prepare_model_for_kbit_training(model, keep=("score",)):
    for name, p in model.named_parameters():
        p.requires_grad = any(part in name for part in keep)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.float()
    return model


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 32, (n, 12), generator=g)
    y = (ids[:, 0] % 2 == ids[:, 5] % 2).long()
    ids[y == 1, -1] = torch.where(torch.rand(int(y.sum()), generator=g) < 0.3, 1, ids[y == 1, -1])
    return ids, y


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        return (model(data[0]).argmax(1) == data[1]).float().mean().item()


def main(seed=4, epochs=12, batch_size=32, lr=1e-2):
    torch.manual_seed(seed)
    model = SequenceClassifier()
    model = prepare_model_for_kbit_training(model)
    model = get_peft_model(model, LoraConfig())
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    train, val = make_data(384, 1), make_data(256, 2)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(train[0])).split(batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train[0][idx]), train[1][idx])
            loss.backward()
            nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            total += loss.item() * len(idx)
        scheduler.step()
        if epoch % 3 == 2:
            print(f"epoch {epoch} loss {total / len(train[0]):.4f} val acc {accuracy(model, val):.3f}")
    return {"loss": total / len(train[0]), "acc": accuracy(model, train), "model": model}


if __name__ == "__main__":
    main()
