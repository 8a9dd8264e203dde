"""Contrastive training with a batch larger than memory allows: embeddings first, gradients of them, then chunk by chunk."""
import torch
from torch import nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, dim, out=16, p=0.1):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Dropout(p), nn.Linear(48, out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class RandomState:
    """The state of the generator before a chunk, to run the chunk again with the same dropout."""

    def __init__(self):
        self.state = torch.get_rng_state()

    def __enter__(self):
        self.outer = torch.get_rng_state()
        torch.set_rng_state(self.state)

    def __exit__(self, *exc):
        torch.set_rng_state(self.outer)


class CachedContrastive:
    def __init__(self, towers, lr=3e-3, chunk=16, temperature=0.1):
        self.towers = towers
        self.chunk = chunk
        self.temperature = temperature
        params = [p for tower in towers for p in tower.parameters()]
        self.optimizer = torch.optim.AdamW(params, lr=lr)

    def _embed(self, tower, inputs):
        reps, states = [], []
        with torch.no_grad():
            for part in inputs.split(self.chunk):
                states.append(RandomState())
                reps.append(tower(part))
        return torch.cat(reps), states

    def _loss(self, left, right):
        scores = left @ right.t() / self.temperature
        target = torch.arange(len(left))
        return 0.5 * (F.cross_entropy(scores, target) + F.cross_entropy(scores.t(), target))

    def _cache(self, reps):
        leaves = [r.detach().requires_grad_() for r in reps]
        loss = self._loss(*leaves)
        loss.backward()
        return [leaf.grad for leaf in leaves], loss.detach()

    def _second_pass(self, tower, inputs, states, grads):
        for part, state, grad in zip(inputs.split(self.chunk), states, grads.split(self.chunk)):
            with state:
                reps = tower(part)
            surrogate = torch.dot(reps.flatten(), grad.flatten())
            surrogate.backward()

    def step(self, *views):
        for tower in self.towers:
            tower.train()
        self.optimizer.zero_grad()
        embedded = [self._embed(tower, view) for tower, view in zip(self.towers, views)]
        grads, loss = self._cache([reps for reps, _ in embedded])
        for tower, view, (_, states), grad in zip(self.towers, views, embedded, grads):
            self._second_pass(tower, view, states, grad)
        self.optimizer.step()
        return loss.item()


def pairs(n, g):
    latent = torch.randn(n, 8, generator=g)
    mix_a = torch.randn(8, 20, generator=torch.Generator().manual_seed(1))
    mix_b = torch.randn(8, 30, generator=torch.Generator().manual_seed(2))
    return torch.tanh(latent @ mix_a), torch.tanh(latent @ mix_b)


def main(steps=40):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(5)
    trainer = CachedContrastive([Tower(20), Tower(30)])
    for step in range(steps):
        loss = trainer.step(*pairs(64, g))
        if step % 10 == 0:
            print(f"{step:3d} {loss:.4f}")
    return loss


if __name__ == "__main__":
    main()
