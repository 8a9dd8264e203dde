"""Sentence classifier trained in two sessions with a wrapped optimizer."""
import io
from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional as F


class Lookahead(torch.optim.Optimizer):
    def __init__(self, optimizer, k=5, alpha=0.5):
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"invalid alpha {alpha}")
        self.optimizer = optimizer
        self.k = k
        self.alpha = alpha
        self.param_groups = optimizer.param_groups
        self.defaults = dict(optimizer.defaults, k=k, alpha=alpha)
        self._optimizer_step_pre_hooks = {}
        self._optimizer_step_post_hooks = {}
        self.state = defaultdict(dict)
        for group in self.param_groups:
            group.setdefault("counter", 0)
            for p in group["params"]:
                self.state[p]["slow_params"] = p.detach().clone()

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none=set_to_none)

    @torch.no_grad()
    def update(self, group):
        for p in group["params"]:
            slow = self.state[p]["slow_params"]
            slow.add_(p - slow, alpha=self.alpha)
            p.copy_(slow)

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            group["counter"] += 1
            if group["counter"] % self.k == 0:
                self.update(group)
        return loss

    def state_dict(self):
        slow = [self.state[p]["slow_params"] for group in self.param_groups for p in group["params"]]
        return {"optimizer": self.optimizer.state_dict(), "slow_params": slow}

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict["optimizer"])
        self.param_groups = self.optimizer.param_groups
        params = [p for group in self.param_groups for p in group["params"]]
        for p, slow in zip(params, state_dict["slow_params"]):
            self.state[p]["slow_params"].copy_(slow)


class SentenceClassifier(nn.Module):
    def __init__(self, vocab=60, dim=24, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, classes)

    def forward(self, tokens):
        h, _ = self.rnn(self.embedding(tokens))
        mask = tokens.ne(0).unsqueeze(2)
        pooled = h.masked_fill(~mask, float("-inf")).max(dim=1).values
        return self.out(pooled)


def corpus(n, generator):
    labels = torch.randint(0, 3, (n,), generator=generator)
    tokens = torch.randint(1, 60, (n, 10), generator=generator)
    marker = torch.randint(0, 10, (n,), generator=generator)
    tokens[torch.arange(n), marker] = labels * 5 + torch.randint(1, 6, (n,), generator=generator)
    lengths = torch.maximum(marker + 1, torch.randint(5, 11, (n,), generator=generator))
    return tokens.masked_fill(torch.arange(10) >= lengths[:, None], 0), labels


class Session:
    def __init__(self, seed, lr=0.02):
        torch.manual_seed(seed)
        self.model = SentenceClassifier()
        self.optimizer = Lookahead(torch.optim.Adam(self.model.parameters(), lr=lr), k=6, alpha=0.5)

    def train(self, batches):
        self.model.train()
        for tokens, labels in batches:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(tokens), labels)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def save(self):
        stream = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, stream)
        stream.seek(0)
        return stream

    def resume(self, stream):
        checkpoint = torch.load(stream)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        return self

    @torch.no_grad()
    def evaluate(self, tokens, labels):
        self.model.eval()
        return F.cross_entropy(self.model(tokens), labels).item()


def main():
    generator = torch.Generator().manual_seed(5)
    batches = [corpus(32, generator) for _ in range(88)]
    held_out = corpus(256, generator)
    first = Session(seed=1)
    first.train(batches[:80])
    print(f"first session:  held-out loss {first.evaluate(*held_out):.4f}")
    second = Session(seed=2).resume(first.save())
    second.train(batches[80:])
    print(f"second session: held-out loss {second.evaluate(*held_out):.4f}")
    return first, second, batches, held_out


if __name__ == "__main__":
    main()
