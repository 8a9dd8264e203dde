"""Contrastive learning with a big batch on a small budget: gradients of the embeddings are cached."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class RandContext:
    """The random state of a forward pass, so that it can be run again with the same dropout masks."""

    def __init__(self):
        self.state = torch.get_rng_state()

    def __enter__(self):
        self.fork = torch.random.fork_rng(devices=[])
        self.fork.__enter__()
        torch.set_rng_state(self.state)

    def __exit__(self, *exc):
        self.fork.__exit__(*exc)
        self.fork = None


class Tower(nn.Module):
    def __init__(self, n_in, dim=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.passage = Tower(10), Tower(14)
        self.log_scale = nn.Parameter(torch.tensor(2.5))

    def loss(self, q, p):
        logits = self.log_scale.exp() * q @ p.t()
        labels = torch.arange(len(q))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class GradCache:
    def __init__(self, model, chunk):
        self.model, self.chunk = model, chunk

    def embed(self, tower, x):
        reps, contexts = [], []
        with torch.no_grad():
            for part in x.split(self.chunk):
                contexts.append(RandContext())
                reps.append(tower(part))
        return torch.cat(reps), contexts

    def replay(self, tower, x, contexts, cached):
        for part, context, grad in zip(x.split(self.chunk), contexts, cached.split(self.chunk)):
            with context:
                rep = tower(part)
            surrogate = torch.dot(rep.flatten(), grad.flatten())
            surrogate.backward()

    def step(self, q_in, p_in):
        q, q_contexts = self.embed(self.model.query, q_in)
        p, p_contexts = self.embed(self.model.passage, p_in)
        q, p = q.requires_grad_(), p.requires_grad_()
        loss = self.model.loss(q, p)
        loss.backward()
        self.replay(self.model.query, q_in, q_contexts, q.grad)
        self.replay(self.model.passage, p_in, p_contexts, p.grad)
        return loss.detach()


def pairs(n, g):
    z = torch.randn(n, 6, generator=g)
    g_map = torch.Generator().manual_seed(77)
    a, b = torch.randn(6, 10, generator=g_map), torch.randn(6, 14, generator=g_map)
    return torch.tanh(z @ a), torch.tanh(z @ b)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(5)
    model = DualEncoder()
    cache = GradCache(model, chunk=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(30):
        optimizer.zero_grad()
        loss = cache.step(*pairs(96, g))
        optimizer.step()
        with torch.no_grad():
            model.log_scale.clamp_(0, 4.6)
        if step % 10 == 0:
            print(step, round(loss.item(), 4))
    return model


if __name__ == "__main__":
    main()
