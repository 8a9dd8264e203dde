"""A rectified Adam with parameter groups of their own betas, used to fine-tune a sequence tagger."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer


class RAdam(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        if not 0.0 <= lr:
            raise ValueError(f"Invalid learning rate: {lr}")
        self.buffer = [[None, None, None] for _ in range(10)]
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, defaults)

    def _rectify(self, step, beta1, beta2, buffered):
        if step == buffered[0]:
            return buffered[1], buffered[2]
        beta2_t = beta2**step
        n_sma_max = 2 / (1 - beta2) - 1
        n_sma = n_sma_max - 2 * step * beta2_t / (1 - beta2_t)
        if n_sma >= 5:
            step_size = math.sqrt(
                (1 - beta2_t)
                * (n_sma - 4) / (n_sma_max - 4)
                * (n_sma - 2) / n_sma
                * n_sma_max / (n_sma_max - 2)
            ) / (1 - beta1**step)
        else:
            step_size = 1.0 / (1 - beta1**step)
        buffered[0], buffered[1], buffered[2] = step, n_sma, step_size
        return n_sma, step_size

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            table = self.buffer
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                exp_avg_sq.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                exp_avg.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["step"] += 1
                buffered = table[int(state["step"] % 10)]
                n_sma, step_size = self._rectify(state["step"], beta1, beta2, buffered)
                if group["weight_decay"] != 0:
                    p.mul_(1 - group["weight_decay"] * group["lr"])
                if n_sma >= 5:
                    p.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(group["eps"]), value=-step_size * group["lr"])
                else:
                    p.add_(exp_avg, alpha=-step_size * group["lr"])
        return loss


class Tagger(nn.Module):
    def __init__(self, vocab_size=60, hidden=24, n_tags=5):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden)
        self.encoder = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * hidden, n_tags)

    def forward(self, tokens):
        hidden, _ = self.encoder(self.embedding(tokens))
        return self.classifier(hidden)


def make_data(n=256, length=10, vocab_size=60, n_tags=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab_size, (n, length), generator=g)
    previous = torch.roll(tokens, 1, dims=1)
    previous[:, 0] = 0
    return tokens, (tokens + previous // 20) % n_tags


def build_optimizer(model):
    slow = [*model.embedding.parameters(), *model.encoder.parameters()]
    return RAdam(
        [
            {"params": slow, "lr": 4e-3, "betas": (0.9, 0.999)},
            {"params": model.classifier.parameters(), "lr": 2e-2, "betas": (0.5, 0.9)},
        ],
        weight_decay=1e-3,
    )


def main(epochs=6, batch_size=32):
    torch.manual_seed(0)
    tokens, tags = make_data()
    model = Tagger()
    optimizer = build_optimizer(model)
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(tokens)).split(batch_size):
            loss = F.cross_entropy(model(tokens[index]).flatten(0, 1), tags[index].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index) / len(tokens)
        print(f"epoch {epoch} loss {total:.4f}")
    return model, optimizer


if __name__ == "__main__":
    main()
