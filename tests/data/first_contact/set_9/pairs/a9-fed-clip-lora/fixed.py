import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.t() @ self.lora_B.t()) * self.scale


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class TinyCLIP(nn.Module):
    def __init__(self, width=24, embed=16, vocab=64, patch=12):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(patch, width), Mixer(width), Mixer(width))
        self.visual_proj = nn.Linear(width, embed, bias=False)
        self.token_embedding = nn.Embedding(vocab, width)
        self.transformer = nn.Sequential(Mixer(width), Mixer(width))
        self.text_proj = nn.Linear(width, embed, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def encode_image(self, patches):
        return self.visual_proj(self.visual(patches).mean(dim=1))

    def encode_text(self, tokens):
        return self.text_proj(self.transformer(self.token_embedding(tokens)).mean(dim=1))


def inject_lora(module, rank, alpha):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child, rank, alpha))
        else:
            inject_lora(child, rank, alpha)


def lora_state(model):
    return {n: p.detach().clone() for n, p in model.named_parameters() if "lora_" in n}


class ClipLoRATrainer:
    def __init__(self, model, config, dataset, classnames):
        self.model = copy.deepcopy(model)
        self.config = config
        self.images, self.labels = dataset
        self.classnames = classnames
        self.tokens = self._tokenize(config["template"], classnames)

    @staticmethod
    def _tokenize(template, classnames):
        rows = []
        for name in classnames:
            words = template.format(name).split()
            rows.append([sum(map(ord, w)) % 64 for w in words])
        return torch.tensor(rows)

    def _encode_image(self, images):
        return F.normalize(self.model.encode_image(images), dim=-1)

    def _encode_text(self, tokens):
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config["encoder"] in {"text", "both"}):
            feats = self.model.encode_text(tokens)
            feats = F.normalize(feats, dim=-1)
        return feats

    def load_parameters(self, state):
        self.model.load_state_dict(state, strict=False)

    def train(self):
        encoder = self.config["encoder"]
        params = [p for n, p in self.model.named_parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(params, lr=self.config["lr"], weight_decay=1e-2)
        self.model.train()
        cached = None if encoder in {"text", "both"} else self._encode_text(self.tokens)
        total, seen = 0.0, 0
        for _ in range(self.config["local_epochs"]):
            for idx in torch.randperm(len(self.labels)).split(self.config["batch_size"]):
                text = self._encode_text(self.tokens) if cached is None else cached
                image = self._encode_image(self.images[idx])
                logits = self.model.logit_scale.exp().detach() * image @ text.t()
                loss = F.cross_entropy(logits, self.labels[idx])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(idx)
                seen += len(idx)
        return lora_state(self.model), total / seen

    @torch.no_grad()
    def evaluate(self, images, labels):
        self.model.eval()
        logits = self._encode_image(images) @ self._encode_text(self.tokens).t()
        return (logits.argmax(1) == labels).float().mean().item()


class FedAvgServer:
    def __init__(self, state):
        self.state = state

    def aggregate(self, updates, weights):
        total = sum(weights)
        for key in self.state:
            self.state[key] = sum(u[key] * (w / total) for u, w in zip(updates, weights))
        return self.state


def shard(n, num_classes, seed):
    gen = torch.Generator().manual_seed(seed)
    proto = torch.randn(num_classes, 4, 12, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, num_classes, (n,), generator=gen)
    return proto[y] + 1.2 * torch.randn(n, 4, 12, generator=gen), y


def main():
    torch.manual_seed(0)
    classnames = ["airliner", "otter", "teapot", "violin", "glacier", "mosque"]
    config = {"encoder": "both", "rank": 2, "alpha": 4, "lr": 3e-3, "local_epochs": 2, "batch_size": 16, "template": "a photo of a {}"}
    model = TinyCLIP().requires_grad_(False)
    if config["encoder"] in {"vision", "both"}:
        inject_lora(model.visual, config["rank"], config["alpha"])
    if config["encoder"] in {"text", "both"}:
        inject_lora(model.transformer, config["rank"], config["alpha"])
    clients = [ClipLoRATrainer(model, config, shard(96, len(classnames), s), classnames) for s in (1, 2, 3)]
    server = FedAvgServer(lora_state(model))
    test = shard(128, len(classnames), 50)
    for rnd in range(4):
        updates, losses = [], []
        for client in clients:
            client.load_parameters(server.state)
            state, loss = client.train()
            updates.append(state)
            losses.append(loss)
        server.aggregate(updates, [len(c.labels) for c in clients])
        clients[0].load_parameters(server.state)
        print(rnd, [round(v, 3) for v in losses], round(clients[0].evaluate(*test), 3))


if __name__ == "__main__":
    main()
