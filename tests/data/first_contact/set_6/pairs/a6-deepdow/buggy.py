"""Portfolio network: forecast moments, resample them, and allocate by a differentiable softmax rule."""
import torch
from torch import nn
from torch.distributions import MultivariateNormal


class CovarianceMatrix(nn.Module):
    """Build a well conditioned covariance matrix from a factor matrix."""

    def __init__(self, ridge=1e-2):
        super().__init__()
        self.ridge = ridge

    def forward(self, factors):
        eye = torch.eye(factors.shape[1])
        return factors @ factors.transpose(1, 2) / factors.shape[2] + self.ridge * eye


class NumericalAllocator(nn.Module):
    """Mean-variance weights by a few unrolled steps of exponentiated gradient."""

    def __init__(self, n_steps=12, step_size=4.0):
        super().__init__()
        self.n_steps = n_steps
        self.step_size = step_size

    def forward(self, rets, covmat, gamma):
        logits = torch.zeros_like(rets)
        for _ in range(self.n_steps):
            w = logits.softmax(dim=1)
            risk = torch.einsum("bij,bj->bi", covmat, w)
            logits = logits + self.step_size * (rets - gamma[:, None] * risk)
        return logits.softmax(dim=1)


class Resample(nn.Module):
    """Average the weights of several portfolios, each built on simulated returns."""

    def __init__(self, allocator, n_draws=30, n_portfolios=4):
        super().__init__()
        self.allocator = allocator
        self.n_draws = n_draws
        self.n_portfolios = n_portfolios

    def forward(self, matrix, rets, gamma):
        n_samples, n_assets = rets.shape
        dist = MultivariateNormal(loc=rets, covariance_matrix=matrix)
        portfolios = []
        for _ in range(self.n_portfolios):
            draws = dist.sample((self.n_draws,))
            mean = draws.mean(dim=0)
            centred = draws - mean
            cov = torch.einsum("dbi,dbj->bij", centred, centred) / (self.n_draws - 1)
            portfolios.append(self.allocator(mean, cov, gamma))
        return torch.stack(portfolios).mean(dim=0)


class ResampleNet(nn.Module):
    def __init__(self, n_assets, lookback, hidden=24, n_factors=3):
        super().__init__()
        self.n_assets, self.n_factors = n_assets, n_factors
        self.norm = nn.LayerNorm(lookback)
        self.encoder = nn.GRU(n_assets, hidden, batch_first=True)
        self.expected = nn.Linear(hidden, n_assets)
        self.factors = nn.Linear(hidden, n_assets * n_factors)
        self.risk_aversion = nn.Linear(hidden, 1)
        self.covariance = CovarianceMatrix()
        self.resample = Resample(NumericalAllocator())

    def forward(self, x):
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        _, h = self.encoder(x)
        h = h[-1]
        rets = 0.3 * self.expected(h).tanh()
        covmat = self.covariance(0.5 * self.factors(h).view(-1, self.n_assets, self.n_factors))
        gamma = nn.functional.softplus(self.risk_aversion(h)).squeeze(1)
        return self.resample(covmat, rets, gamma)


class MeanReturn:
    def __call__(self, weights, y):
        return -(weights * y).sum(dim=1).mean()


class Volatility:
    def __call__(self, weights, y):
        return (weights * y).sum(dim=1).std()


def market(n, lookback, n_assets, generator):
    regime = torch.randint(0, n_assets, (n,), generator=generator)
    x = torch.randn(n, lookback, n_assets, generator=generator)
    x += 0.8 * nn.functional.one_hot(regime, n_assets)[:, None, :] * torch.linspace(0, 1.5, lookback)[None, :, None]
    y = 0.1 * torch.randn(n, n_assets, generator=generator) + 0.3 * nn.functional.one_hot(regime, n_assets)
    return x, y


def main():
    torch.manual_seed(6)
    generator = torch.Generator().manual_seed(13)
    network = ResampleNet(n_assets=5, lookback=10)
    loss_fn, risk = MeanReturn(), Volatility()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(60):
        x, y = market(64, 10, 5, generator)
        weights = network(x)
        loss = loss_fn(weights, y) + 0.1 * risk(weights, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 15 == 14:
            print(f"epoch {epoch + 1} loss {loss.item():.4f}")
    with torch.no_grad():
        x, y = market(256, 10, 5, generator)
        mean = -loss_fn(network(x), y).item()
    print(f"mean return on new data {mean:.4f}")
    return network, mean


if __name__ == "__main__":
    main()
