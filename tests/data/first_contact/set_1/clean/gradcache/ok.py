"""Large-batch contrastive training in chunks (GradCache): representations first, gradients later."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, d_in, d_out=16, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear(hidden, d_out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class RandContext:
    """Replays the random state of the first pass, so that dropout masks agree."""

    def __init__(self):
        self.state = torch.get_rng_state()

    def __enter__(self):
        self.fork = torch.random.fork_rng()
        self.fork.__enter__()
        torch.set_rng_state(self.state)

    def __exit__(self, *exc):
        return self.fork.__exit__(*exc)


class GradCache:
    def __init__(self, models, chunk, loss_fn):
        self.models, self.chunk, self.loss_fn = models, chunk, loss_fn

    def forward_no_grad(self, model, chunks):
        reps, states = [], []
        with torch.no_grad():
            for c in chunks:
                states.append(RandContext())
                reps.append(model(c))
        return torch.cat(reps), states

    def build_cache(self, reps):
        reps = [r.detach().requires_grad_() for r in reps]
        loss = self.loss_fn(*reps)
        loss.backward()
        return [r.grad.split(self.chunk) for r in reps], loss.detach()

    def forward_backward(self, model, chunks, states, cached):
        for c, state, g in zip(chunks, states, cached):
            with state:
                y = model(c)
            surrogate = torch.dot(y.flatten(), g.flatten())
            surrogate.backward()

    def step(self, *inputs):
        chunks = [x.split(self.chunk) for x in inputs]
        reps, states = zip(*[self.forward_no_grad(m, c) for m, c in zip(self.models, chunks)])
        cache, loss = self.build_cache(reps)
        for args in zip(self.models, chunks, states, cache):
            self.forward_backward(*args)
        return loss.item()


def contrastive(q, d, temperature=0.1):
    return F.cross_entropy(q @ d.t() / temperature, torch.arange(len(q)))


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    mix = torch.randn(10, 14, generator=g)
    query, doc = Tower(10), Tower(14)
    opt = torch.optim.AdamW([*query.parameters(), *doc.parameters()], lr=3e-3)
    cache = GradCache([query, doc], 16, contrastive)
    for step in range(80):
        x = torch.randn(64, 10, generator=g)
        opt.zero_grad()
        loss = cache.step(x, x @ mix + 0.3 * torch.randn(64, 14, generator=g))
        opt.step()
        if step % 30 == 0:
            print(f"step {step}: loss {loss:.4f}")
    query.eval(), doc.eval()
    with torch.no_grad():
        x = torch.randn(128, 10, generator=g)
        return (torch.argmax(query(x) @ doc(x @ mix).t(), 1) == torch.arange(128)).float().mean().item()


if __name__ == "__main__":
    main()
