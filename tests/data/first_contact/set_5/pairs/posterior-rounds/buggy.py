import torch
from torch import nn


class Simulator:
    """Two parameters, a noisy nonlinear observation of four numbers."""

    def __call__(self, theta):
        a, b = theta[:, :1], theta[:, 1:]
        x = torch.cat([a + b, a - b, a * b, torch.sin(a)], 1)
        return x + 0.1 * torch.randn_like(x)


class AffineFlow(nn.Module):
    """Conditional posterior estimator: two affine couplings on top of a standard normal."""

    def __init__(self, dim=2, context=4, hidden=32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(context, hidden), nn.Tanh())
        self.first = nn.Linear(hidden, 2)
        self.second = nn.Sequential(nn.Linear(hidden + 1, hidden), nn.Tanh(), nn.Linear(hidden, 2))

    def log_prob(self, theta, x):
        h = self.embed(x)
        m0, s0 = self.first(h).chunk(2, 1)
        m1, s1 = self.second(torch.cat([h, theta[:, :1]], 1)).chunk(2, 1)
        z = torch.cat([(theta[:, :1] - m0) * torch.exp(-s0), (theta[:, 1:] - m1) * torch.exp(-s1)], 1)
        base = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1)
        return base - (s0 + s1).squeeze(1)

    @torch.no_grad()
    def sample(self, n, x):
        h = self.embed(x.expand(n, -1))
        m0, s0 = self.first(h).chunk(2, 1)
        t0 = m0 + s0.exp() * torch.randn_like(m0)
        m1, s1 = self.second(torch.cat([h, t0], 1)).chunk(2, 1)
        return torch.cat([t0, m1 + s1.exp() * torch.randn_like(m1)], 1)


class Engine:
    def __init__(self, simulator, rounds=3, epochs=25, n_sims=256, lr=5e-3):
        self.simulator, self.rounds = simulator, rounds
        self.epochs, self.n_sims, self.lr = epochs, n_sims, lr
        self.network = AffineFlow()
        self.initial_state = self.network.state_dict()
        self.history = []

    def _init_round(self):
        self.network.load_state_dict(self.initial_state)
        return torch.optim.Adam(self.network.parameters(), lr=self.lr)

    def _train_round(self, optimizer, theta, x):
        losses = []
        for _ in range(self.epochs):
            for batch in torch.randperm(len(theta)).split(64):
                loss = -self.network.log_prob(theta[batch], x[batch]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    def fit(self, x_obs):
        theta = torch.randn(self.n_sims, 2)
        for _ in range(self.rounds):
            x = self.simulator(theta)
            optimizer = self._init_round()
            losses = self._train_round(optimizer, theta, x)
            self.history.append((losses[0], losses[-1]))
            theta = self.network.sample(self.n_sims, x_obs) + 0.3 * torch.randn(self.n_sims, 2)
        return self.network


def main():
    torch.manual_seed(6)
    simulator = Simulator()
    engine = Engine(simulator)
    network = engine.fit(simulator(torch.tensor([[0.5, -0.3]])))
    for i, (start, end) in enumerate(engine.history):
        print(f"round {i}: loss {start:.3f} -> {end:.3f}")
    return {"engine": engine, "network": network}

if __name__ == "__main__":
    main()
