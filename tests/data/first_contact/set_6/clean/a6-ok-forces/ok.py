"""Energy model of small clusters, fitted to energies and forces, finished with a quasi-Newton step."""
import torch
from torch import nn


class RadialBasis(nn.Module):
    def __init__(self, n=12, cutoff=4.0):
        super().__init__()
        self.register_buffer("centre", torch.linspace(0.5, cutoff, n))
        self.cutoff = cutoff

    def forward(self, d):
        envelope = 0.5 * (torch.cos(torch.pi * (d / self.cutoff).clamp(max=1.0)) + 1)
        return torch.exp(-4 * (d[..., None] - self.centre) ** 2) * envelope[..., None]


class EnergyModel(nn.Module):
    def __init__(self, n_rbf=12, hidden=32):
        super().__init__()
        self.rbf = RadialBasis(n_rbf)
        self.pair = nn.Sequential(nn.Linear(n_rbf, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        self.atom = nn.Sequential(nn.Tanh(), nn.Linear(hidden, 1))
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, pos):
        n = pos.shape[1]
        i, j = torch.triu_indices(n, n, offset=1)
        i, j = torch.cat([i, j]), torch.cat([j, i])
        d = (pos[:, i] - pos[:, j]).pow(2).sum(-1).sqrt()
        message = self.pair(self.rbf(d))
        node = pos.new_zeros(pos.shape[0], n, message.shape[-1]).index_add(1, i, message)
        return self.atom(node).sum(dim=(1, 2)) * self.scale + self.shift

    def energy_and_forces(self, pos):
        pos = pos.detach().requires_grad_(True)
        with torch.enable_grad():
            energy = self(pos)
            grad, = torch.autograd.grad(energy.sum(), pos, create_graph=self.training)
        return energy, -grad


def reference(pos):
    pos = pos.clone().requires_grad_(True)
    i, j = torch.triu_indices(pos.shape[1], pos.shape[1], offset=1)
    d = (pos[:, i] - pos[:, j]).norm(dim=-1)
    energy = ((1 - torch.exp(-1.2 * (d - 1.5))) ** 2 - 1).sum(1)
    forces = -torch.autograd.grad(energy.sum(), pos)[0]
    return energy.detach(), forces


def clusters(n):
    base = torch.tensor([[0.0, 0, 0], [1.5, 0, 0], [0.75, 1.3, 0], [0.75, 0.43, 1.22]])
    return base + 0.15 * torch.randn(n, 4, 3)


def loss_fn(model, pos, energy, forces, weight=5.0):
    e, f = model.energy_and_forces(pos)
    return (e - energy).pow(2).mean() + weight * (f - forces).pow(2).mean()


@torch.no_grad()
def evaluate(model, pos, energy, forces):
    model.eval()
    e, f = model.energy_and_forces(pos)
    model.train()
    return (e - energy).abs().mean().item(), (f - forces).abs().mean().item()


def main():
    torch.manual_seed(10)
    train, test = clusters(96), clusters(64)
    data, held_out = (train, *reference(train)), (test, *reference(test))
    model = EnergyModel()
    model.shift.copy_(data[1].mean())
    model.scale.copy_(data[1].std())
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(60):
        idx = torch.randint(0, 96, (32,))
        adam.zero_grad()
        loss = loss_fn(model, *(x[idx] for x in data))
        loss.backward()
        adam.step()
        if step % 20 == 19:
            print("step %d energy %.4f forces %.4f" % (step + 1, *evaluate(model, *held_out)))

    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=15, line_search_fn="strong_wolfe")

    def closure():
        lbfgs.zero_grad()
        value = loss_fn(model, *data)
        value.backward()
        return value

    for _ in range(2):
        lbfgs.step(closure)
    print("refined energy %.4f forces %.4f" % evaluate(model, *held_out))


if __name__ == "__main__":
    main()
