"""Self-distillation of a sequence tagger: the adapted network learns from itself without its adapter."""
import contextlib
import math

import torch
import torch.nn.functional as F
from torch import nn


class AdaptedLinear(nn.Module):
    def __init__(self, dim_in, dim_out, rank=4, p_drop=0.25):
        super().__init__()
        self.base = nn.Linear(dim_in, dim_out)
        self.base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, dim_in) / math.sqrt(dim_in))
        self.up = nn.Parameter(torch.zeros(dim_out, rank))
        self.drop = nn.Dropout(p_drop)
        self.active = True

    def forward(self, x):
        y = self.base(x)
        if self.active:
            y = y + self.drop(x) @ self.down.t() @ self.up.t()
        return y


class Tagger(nn.Module):
    def __init__(self, vocab=40, dim=24, tags=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.emb.requires_grad_(False)
        self.mid = AdaptedLinear(dim, dim)
        self.drop = nn.Dropout(0.2)
        self.out = AdaptedLinear(dim, tags)

    def forward(self, tokens):
        h = self.emb(tokens)
        context = h.cumsum(1) / torch.arange(1, tokens.shape[1] + 1).view(1, -1, 1)
        return self.out(self.drop(torch.tanh(self.mid(h + context))))

    @contextlib.contextmanager
    def without_adapter(self):
        layers = [m for m in self.modules() if isinstance(m, AdaptedLinear)]
        for layer in layers:
            layer.active = False
        try:
            yield
        finally:
            for layer in layers:
                layer.active = True


class SelfDistiller:
    def __init__(self, model, teacher=None, weight=0.3, temperature=2.0, lr=5e-3):
        self.model = model
        self.teacher = teacher if teacher is not None else model
        self.weight = weight
        self.temperature = temperature
        params = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)

    def teacher_logits(self, tokens):
        self.teacher.eval()
        scope = self.model.without_adapter() if self.teacher is self.model else contextlib.nullcontext()
        with torch.no_grad(), scope:
            logits = self.teacher(tokens)
        self.model.train()
        return logits

    def compute_loss(self, tokens, tags):
        target = F.softmax(self.teacher_logits(tokens) / self.temperature, dim=-1)
        logits = self.model(tokens)
        hard = F.cross_entropy(logits.flatten(0, 1), tags.flatten())
        soft = F.kl_div(F.log_softmax(logits / self.temperature, dim=-1).flatten(0, 1),
                        target.flatten(0, 1), reduction="batchmean")
        return hard + self.weight * self.temperature ** 2 * soft

    def training_step(self, tokens, tags):
        self.model.train()
        loss = self.compute_loss(tokens, tags)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def corpus(n=256, length=12, vocab=40, tags=5):
    tokens = torch.randint(0, vocab, (n, length))
    return tokens, (tokens + tokens.roll(1, dims=1)) % tags


def main(steps=40):
    torch.manual_seed(11)
    tokens, tags = corpus()
    model = Tagger()
    distiller = SelfDistiller(model)
    seen = []
    for step in range(steps):
        pick = torch.randint(0, len(tokens), (32,))
        seen.append(distiller.training_step(tokens[pick], tags[pick]).item())
        if step % 10 == 9:
            print(f"step {step + 1:3d}  loss {sum(seen[-10:]) / 10:.4f}")
    return distiller, seen


if __name__ == "__main__":
    main()
