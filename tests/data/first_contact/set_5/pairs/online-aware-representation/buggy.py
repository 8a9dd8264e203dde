import torch
import torch.nn as nn
import torch.nn.functional as F


class Learner(nn.Module):
    """A representation network, and a prediction head that adapts online."""

    def __init__(self, in_dim=4, rep=16):
        super().__init__()
        self.rln = nn.Sequential(nn.Linear(in_dim, rep), nn.ReLU(), nn.Linear(rep, rep), nn.ReLU())
        self.pln_w = nn.Parameter(torch.randn(1, rep) * 0.1)
        self.pln_b = nn.Parameter(torch.zeros(1))

    def head(self):
        return [self.pln_w, self.pln_b]

    def forward(self, x, vars=None):
        w, b = self.head() if vars is None else vars
        return F.linear(self.rln(x), w, b)


class MetaLearner(nn.Module):
    def __init__(self, update_lr=0.1, meta_lr=2e-3):
        super().__init__()
        self.update_lr = update_lr
        self.net = Learner()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=meta_lr)

    def inner_update(self, x, fast_weights, y):
        logits = self.net(x, fast_weights)
        loss = F.mse_loss(logits, y)
        grad = torch.autograd.grad(loss, fast_weights, allow_unused=False)
        return [w - self.update_lr * g for g, w in zip(grad, fast_weights)]

    def meta_loss(self, x_traj, y_traj, x_rand, y_rand):
        fast_weights = self.inner_update(x_traj[0], self.net.head(), y_traj[0])
        for k in range(1, len(x_traj)):
            fast_weights = self.inner_update(x_traj[k], fast_weights, y_traj[k])
        return F.mse_loss(self.net(x_rand, fast_weights), y_rand)

    def forward(self, x_traj, y_traj, x_rand, y_rand):
        loss = self.meta_loss(x_traj, y_traj, x_rand, y_rand)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class TaskSampler:
    def __init__(self, seed):
        self.rng = torch.Generator().manual_seed(seed)

    def sample(self, steps=5, shots=8):
        slope = torch.randn(4, 1, generator=self.rng)
        x = torch.randn(steps + 1, shots, 4, generator=self.rng)
        y = torch.sin(x @ slope)
        return x[:steps], y[:steps], x[steps], y[steps]


def main():
    torch.manual_seed(1)
    maml, sampler = MetaLearner(), TaskSampler(2)
    losses = [maml(*sampler.sample()) for _ in range(200)]
    print(f"meta loss {sum(losses[:20]) / 20:.4f} -> {sum(losses[-20:]) / 20:.4f}")
    return {"maml": maml, "losses": losses}

if __name__ == "__main__":
    main()
