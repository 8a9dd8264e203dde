from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class XLoraConfig:
    hidden_size: int = 32
    vocab_size: int = 40
    num_layers: int = 2
    adapters: tuple = ("math", "code", "chat")
    r: int = 4
    alpha: int = 8
    classifier_size: int = 16
    softmax_temperature: float = 1.0
    max_length: int = 12


class LoraLinear(nn.Module):
    def __init__(self, base, config):
        super().__init__()
        self.base_layer = base
        self.base_layer.requires_grad_(False)
        self.scaling = config.alpha / config.r
        self.lora_A = nn.ModuleDict(
            {n: nn.Linear(base.in_features, config.r, bias=False) for n in config.adapters}
        )
        self.lora_B = nn.ModuleDict(
            {n: nn.Linear(config.r, base.out_features, bias=False) for n in config.adapters}
        )
        for name in config.adapters:
            nn.init.normal_(self.lora_B[name].weight, std=0.02)

    def forward(self, x, scalings=None):
        out = self.base_layer(x)
        if scalings is None:
            return out
        for i, name in enumerate(self.lora_A):
            weight = scalings[..., i : i + 1]
            out = out + self.lora_B[name](self.lora_A[name](x)) * self.scaling * weight
        return out


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.hidden_size
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = LoraLinear(nn.Linear(d, 3 * d), config)
        self.proj = nn.Linear(d, d)
        self.mlp_in = LoraLinear(nn.Linear(d, 2 * d), config)
        self.mlp_out = nn.Linear(2 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm2(x))))


class BaseLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.pos = nn.Embedding(config.max_length, config.hidden_size)
        self.layers = nn.ModuleList([Block(config) for _ in range(config.num_layers)])
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for part in (self.embed, self.pos):
            part.requires_grad_(False)

    def forward(self, ids):
        x = self.embed(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return x, self.lm_head(x)


class XLoraClassifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.temperature = config.softmax_temperature
        self.inner = nn.Sequential(
            nn.Linear(config.hidden_size, config.classifier_size),
            nn.ReLU(),
            nn.Linear(config.classifier_size, len(config.adapters)),
        )

    def forward(self, hidden):
        return torch.softmax(self.inner(hidden) / self.temperature, dim=-1)


class XLoraModel(nn.Module):
    def __init__(self, base, config):
        super().__init__()
        self.base_model = base
        self.config = config
        self.classifier = XLoraClassifier(config)

    def lora_layers(self):
        return [m for m in self.base_model.modules() if isinstance(m, LoraLinear)]

    def forward(self, ids):
        with torch.no_grad():
            hidden, _ = self.base_model(ids)
        scalings = self.classifier(hidden)

        def scalings_injection_hook(module, args, kwargs):
            kwargs["scalings"] = scalings
            return args, kwargs

        handles = []
        for module in self.lora_layers():
            handles.append(module.register_forward_pre_hook(scalings_injection_hook, with_kwargs=True))
        try:
            _, logits = self.base_model(ids)
        finally:
            for handle in handles:
                handle.remove()
        return logits, scalings


def counting_batch(config, n):
    start = torch.randint(0, config.vocab_size, (n, 1))
    stride = torch.randint(1, 4, (n, 1))
    return (start + stride * torch.arange(config.max_length + 1)) % config.vocab_size


def main():
    torch.manual_seed(21)
    config = XLoraConfig()
    model = XLoraModel(BaseLM(config), config)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=5e-3)
    for step in range(1, 61):
        batch = counting_batch(config, 16)
        logits, scalings = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            usage = [round(v, 3) for v in scalings.detach().mean(dim=(0, 1)).tolist()]
            print(step, round(loss.item(), 4), usage)
    model.eval()
    with torch.no_grad():
        batch = counting_batch(config, 16)
        logits, _ = model(batch[:, :-1])
        print("accuracy", round((logits.argmax(-1) == batch[:, 1:]).float().mean().item(), 3))


if __name__ == "__main__":
    main()
