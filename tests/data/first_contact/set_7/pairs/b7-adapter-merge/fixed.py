import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LoraConfig:
    r: int = 4
    lora_alpha: int = 8
    target_modules: tuple = ("q_proj", "v_proj")


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, config: LoraConfig):
        super().__init__()
        self.base_layer = base
        self.scaling = config.lora_alpha / config.r
        self.lora_A = nn.Parameter(torch.empty(config.r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, config.r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.merged = False
        self._unmerged_weight = None

    def get_delta_weight(self):
        return self.lora_B @ self.lora_A * self.scaling

    @torch.no_grad()
    def merge(self):
        if self.merged:
            return
        self._unmerged_weight = self.base_layer.weight.detach().clone()
        self.base_layer.weight.add_(self.get_delta_weight())
        self.merged = True

    @torch.no_grad()
    def unmerge(self):
        if not self.merged:
            return
        self.base_layer.weight.copy_(self._unmerged_weight)
        self._unmerged_weight = None
        self.merged = False

    def forward(self, x):
        result = self.base_layer(x)
        if self.merged:
            return result
        return result + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def split(self, x):
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x):
        h = self.norm1(x)
        y = F.scaled_dot_product_attention(*(self.split(p(h)) for p in (self.q_proj, self.k_proj, self.v_proj)))
        x = x + self.o_proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm2(x))


class SequenceClassifier(nn.Module):
    def __init__(self, vocab=32, dim=32, heads=4, depth=2, num_labels=3):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(EncoderLayer(dim, heads) for _ in range(depth))
        self.classifier = nn.Linear(dim, num_labels)

    def forward(self, input_ids):
        x = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(x.mean(1))


def get_peft_model(model, config: LoraConfig):
    for p in model.parameters():
        p.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in config.target_modules:
                setattr(module, name, LoraLinear(child, config))
    for p in model.classifier.parameters():
        p.requires_grad_(True)
    return model


def lora_layers(model):
    return [m for m in model.modules() if isinstance(m, LoraLinear)]


class Trainer:
    def __init__(self, model, data, lr=5e-3, batch_size=32):
        self.model, self.data, self.batch_size = model, data, batch_size
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=lr)
        self.exports = {}

    def merge_adapter(self):
        for layer in lora_layers(self.model):
            layer.merge()

    def unmerge_adapter(self):
        for layer in lora_layers(self.model):
            layer.unmerge()

    def export_merged(self, tag):
        self.merge_adapter()
        self.exports[tag] = {
            n: p.detach().clone() for n, p in self.model.state_dict().items() if "lora_" not in n
        }

    def evaluate(self, epoch):
        self.model.eval()
        self.merge_adapter()
        ids, labels = self.data["test"]
        with torch.no_grad():
            logits = self.model(ids)
        self.export_merged(f"checkpoint-{epoch}")
        self.unmerge_adapter()
        self.model.train()
        return F.cross_entropy(logits, labels).item(), (logits.argmax(-1) == labels).float().mean().item()

    def train(self, epochs):
        ids, labels = self.data["train"]
        for epoch in range(epochs):
            total = 0.0
            for idx in torch.randperm(len(ids)).split(self.batch_size):
                loss = F.cross_entropy(self.model(ids[idx]), labels[idx])
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                total += loss.item() * len(idx)
            eval_loss, eval_acc = self.evaluate(epoch)
            print(f"epoch {epoch}: loss {total / len(ids):.4f} eval_loss {eval_loss:.4f} eval_acc {eval_acc:.3f}")


def make_data(n, generator, vocab=32, length=12):
    ids = torch.randint(0, vocab, (n, length), generator=generator)
    return ids, (ids // 11).mode(1).values.clamp(max=2)


def main():
    torch.manual_seed(17)
    gen = torch.Generator().manual_seed(18)
    model = get_peft_model(SequenceClassifier(), LoraConfig())
    trainer = Trainer(model, {"train": make_data(512, gen), "test": make_data(256, gen)})
    trainer.train(epochs=6)


if __name__ == "__main__":
    main()
