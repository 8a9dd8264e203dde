"""Matrix factorization trained with clipped, noised per-user gradients."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class FactorModel(nn.Module):
    def __init__(self, n_items, n_groups, dim=12):
        super().__init__()
        self.group = nn.Embedding(n_groups, dim)
        self.item = nn.Embedding(n_items, dim)
        self.item_bias = nn.Embedding(n_items, 1)
        nn.init.normal_(self.group.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, group, item):
        dot = (self.group(group) * self.item(item)).sum(-1)
        return dot + self.item_bias(item).squeeze(-1)


class DPOptimizer:
    """Collects one clipped gradient per user, then hands the noised mean on."""

    def __init__(self, optimizer, max_grad_norm, noise_multiplier, generator):
        self.original = optimizer
        self.max_grad_norm = max_grad_norm
        self.noise_multiplier = noise_multiplier
        self.generator = generator
        self.summed = {}
        self.count = 0

    @property
    def params(self):
        return [p for group in self.original.param_groups for p in group["params"]]

    def zero_grad(self):
        self.original.zero_grad(set_to_none=True)

    @torch.no_grad()
    def accumulate(self):
        grads = [p.grad for p in self.params if p.grad is not None]
        norm = torch.stack([g.norm() for g in grads]).norm()
        factor = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for p in self.params:
            if p.grad is None:
                continue
            if p not in self.summed:
                self.summed[p] = torch.zeros_like(p)
            self.summed[p].add_(p.grad * factor)
        self.count += 1

    @torch.no_grad()
    def step(self):
        std = self.noise_multiplier * self.max_grad_norm
        for p, s in self.summed.items():
            noise = torch.randn(s.shape, generator=self.generator) * std
            p.grad = (s + noise) / self.count
        self.original.step()
        self.summed.clear()
        self.count = 0


def make_ratings(n_users=96, n_items=30, n_groups=6, per_user=12):
    g = torch.Generator().manual_seed(2)
    taste = torch.randn(n_groups, 4, generator=g)
    style = torch.randn(n_items, 4, generator=g)
    users = []
    for u in range(n_users):
        group = torch.full((per_user,), u % n_groups)
        item = torch.randperm(n_items, generator=g)[:per_user]
        like = ((taste[group] * style[item]).sum(-1) > 0).float()
        users.append((group, item, like))
    return users


def train(model, users, dp, epochs=6, users_per_step=16):
    for epoch in range(epochs):
        order = torch.randperm(len(users)).tolist()
        total = 0.0
        for i, u in enumerate(order):
            group, item, like = users[u]
            dp.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(group, item), like)
            loss.backward()
            dp.accumulate()
            total += loss.item()
            if (i + 1) % users_per_step == 0:
                dp.step()
        print(f"epoch {epoch}  loss {total / len(users):.4f}")


def accuracy(model, users):
    with torch.no_grad():
        hits = [((model(g, i) > 0).float() == y).float().mean() for g, i, y in users]
    return torch.stack(hits).mean().item()


def main():
    torch.manual_seed(0)
    users = make_ratings()
    model = FactorModel(n_items=30, n_groups=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    dp = DPOptimizer(optimizer, max_grad_norm=0.5, noise_multiplier=0.05,
                     generator=torch.Generator().manual_seed(3))
    train(model, users, dp)
    print(f"accuracy {accuracy(model, users):.3f}")
    return model


if __name__ == "__main__":
    main()
