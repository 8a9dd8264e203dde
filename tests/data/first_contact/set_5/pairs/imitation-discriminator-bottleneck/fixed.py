from typing import NamedTuple

import torch
from torch import nn


class GAILSettings(NamedTuple):
    obs_size: int = 5
    act_size: int = 2
    hidden: int = 32
    z_size: int = 8
    mutual_information: float = 0.5
    alpha: float = 5e-4
    initial_beta: float = 0.01
    learning_rate: float = 1e-3
    steps: int = 200
    batch: int = 64


class DiscriminatorNetwork(nn.Module):
    EPSILON = 1e-7

    def __init__(self, settings):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(settings.obs_size + settings.act_size, settings.hidden), nn.SiLU(), nn.Linear(settings.hidden, settings.hidden), nn.SiLU()
        )
        self.z_mu_layer = nn.Linear(settings.hidden, settings.z_size)
        self.z_sigma = nn.Parameter(torch.zeros(settings.z_size) - 0.5)
        self.estimator = nn.Linear(settings.z_size, 1)

    def sample_code(self, mu, use_noise):
        if not use_noise:
            return mu
        return mu + self.z_sigma.exp() * torch.randn_like(mu)

    def forward(self, obs, act, use_noise=True):
        hidden = self.encoder(torch.cat([obs, act], dim=1))
        mu = self.z_mu_layer(hidden)
        code = self.sample_code(mu, use_noise)
        return torch.sigmoid(self.estimator(code)).squeeze(1), mu

    def kl(self, policy_mu, expert_mu):
        log_var = 2 * self.z_sigma

        def one(mu):
            return 0.5 * (mu.pow(2) + log_var.exp() - 1 - log_var).sum(1).mean()

        return 0.5 * (one(policy_mu) + one(expert_mu))


class GAILRewardProvider:
    def __init__(self, settings):
        self.settings = settings
        self.network = DiscriminatorNetwork(settings)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=settings.learning_rate)
        self.beta = settings.initial_beta

    def compute_loss(self, policy_batch, expert_batch):
        eps = self.network.EPSILON
        policy_estimate, policy_mu = self.network(*policy_batch)
        expert_estimate, expert_mu = self.network(*expert_batch)
        loss = -((expert_estimate + eps).log() + (1 - policy_estimate + eps).log()).mean()
        kl = self.network.kl(policy_mu, expert_mu)
        return loss + self.beta * (kl - self.settings.mutual_information), loss, kl

    def update(self, policy_batch, expert_batch):
        total, bce, kl = self.compute_loss(policy_batch, expert_batch)
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        self.beta = max(0.0, self.beta + self.settings.alpha * (kl.item() - self.settings.mutual_information))
        return bce.item()


def demonstrations(settings, gain):
    obs = torch.randn(settings.batch, settings.obs_size)
    act = torch.tanh(obs[:, : settings.act_size] * gain) + 0.1 * torch.randn(settings.batch, settings.act_size)
    return obs, act


def main():
    torch.manual_seed(21)
    settings = GAILSettings()
    provider = GAILRewardProvider(settings)
    losses = [provider.update(demonstrations(settings, -1.0), demonstrations(settings, 1.0)) for _ in range(settings.steps)]
    print(f"discriminator loss {losses[0]:.3f} -> {sum(losses[-20:]) / 20:.3f}, beta {provider.beta:.4f}")
    return {"provider": provider, "losses": losses}

if __name__ == "__main__":
    main()
