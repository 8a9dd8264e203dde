"""Probabilistic dynamics ensemble for model-based policy optimisation."""
import torch
from torch import nn
from torch.nn import functional as F


class EnsembleLinear(nn.Module):
    def __init__(self, n, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, d_in, d_out) / (2 * d_in ** 0.5))
        self.bias = nn.Parameter(torch.zeros(n, 1, d_out))

    def forward(self, x):
        return torch.baddbmm(self.bias, x, self.weight)


class MLP(nn.Module):
    def __init__(self, n, d_in, hidden, d_out):
        super().__init__()
        self.layers = nn.ModuleList([EnsembleLinear(n, d_in, hidden), EnsembleLinear(n, hidden, hidden)])
        self.last = EnsembleLinear(n, hidden, d_out)

    def forward(self, x):
        for layer in self.layers:
            x = F.silu(layer(x))
        return self.last(x)


class EnsembleDynamics(nn.Module):
    def __init__(self, state_dim, action_dim, hidden=48, size=3):
        super().__init__()
        self.size = size
        self.state_net = MLP(size, state_dim + action_dim, hidden, 2 * state_dim)
        self.reward_net = MLP(size, state_dim + action_dim, hidden, 2)
        self.max_state_logvar = nn.Parameter(torch.ones(1, state_dim) / 2.0)
        self.min_state_logvar = nn.Parameter(-torch.ones(1, state_dim) * 10.0)
        self.max_reward_logvar = nn.Parameter(torch.ones(1, 1) / 2.0)
        self.min_reward_logvar = nn.Parameter(-torch.ones(1, 1) * 10.0)

    @staticmethod
    def bound(logvar, low, high):
        logvar = high - F.softplus(high - logvar)
        return low + F.softplus(logvar - low)

    def forward(self, states, actions):
        x = torch.cat([states, actions], dim=-1)
        x = x if x.dim() == 3 else x.unsqueeze(0).expand(self.size, -1, -1)
        state_mean, state_logvar = self.state_net(x).chunk(2, dim=-1)
        reward_mean, reward_logvar = self.reward_net(x).chunk(2, dim=-1)
        return {
            "state_mean": state_mean,
            "state_logvar": self.bound(state_logvar, self.min_state_logvar, self.max_state_logvar),
            "reward_mean": reward_mean,
            "reward_logvar": self.bound(reward_logvar, self.min_reward_logvar, self.max_reward_logvar),
        }


class ModelTrainer:
    def __init__(self, dynamics, lr=2e-3, l2=1e-5, logvar_coef=0.01):
        self.dynamics = dynamics
        self.logvar_coef = logvar_coef
        self.optimizer = torch.optim.Adam(
            [
                {"params": dynamics.state_net.parameters(), "weight_decay": l2},
                {"params": dynamics.reward_net.parameters(), "weight_decay": l2},
            ],
            lr=lr,
        )

    @staticmethod
    def nll(mean, logvar, target):
        return ((mean - target).pow(2) * (-logvar).exp() + logvar).mean(dim=(1, 2)).sum()

    def update(self, states, actions, deltas, rewards):
        d = self.dynamics
        out = d(states, actions)
        loss = self.nll(out["state_mean"], out["state_logvar"], deltas)
        loss = loss + self.nll(out["reward_mean"], out["reward_logvar"], rewards)
        loss = loss + self.logvar_coef * (
            d.max_state_logvar.sum() + d.max_reward_logvar.sum() - d.min_state_logvar.sum() - d.min_reward_logvar.sum()
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def pendulum(n, generator):
    state = torch.randn(n, 3, generator=generator)
    action = torch.rand(n, 1, generator=generator) * 2 - 1
    delta = 0.2 * torch.stack([state[:, 1], -state[:, 0].sin() + action[:, 0], state[:, 0] * state[:, 1]], dim=1)
    delta = delta + 0.05 * torch.randn(n, 3, generator=generator)
    reward = -(state[:, :1] ** 2) - 0.1 * action ** 2
    return state, action, delta, reward


def main():
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(8)
    buffer = pendulum(2048, generator)
    dynamics = EnsembleDynamics(3, 1)
    trainer = ModelTrainer(dynamics)
    for epoch in range(6):
        losses = []
        for _ in range(40):
            idx = torch.randint(0, 2048, (dynamics.size, 64), generator=generator)
            losses.append(trainer.update(*(x[idx] for x in buffer)))
        print(f"epoch {epoch} negative log likelihood {sum(losses) / len(losses):.3f}")
    with torch.no_grad():
        out = dynamics(*pendulum(256, generator)[:2])
        far = dynamics(torch.randn(256, 3, generator=generator) * 6, torch.zeros(256, 1))
    print(f"predicted std: on data {(out['state_logvar'] / 2).exp().mean():.3f}, far {(far['state_logvar'] / 2).exp().mean():.3f}")
    return dynamics


if __name__ == "__main__":
    main()
