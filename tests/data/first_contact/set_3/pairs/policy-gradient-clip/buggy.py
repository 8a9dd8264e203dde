"""Policy gradient agent (A2C or RPG loss) on a matrix game with noisy payoffs."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class PGConfig:
    info_state_size: int = 6
    num_actions: int = 3
    hidden: tuple = (32,)
    loss_str: str = "a2c"
    batch_size: int = 32
    critic_learning_rate: float = 0.02
    pi_learning_rate: float = 0.05
    entropy_cost: float = 0.01
    num_critic_before_pi: int = 4
    max_global_gradient_norm: float = 0.5
    episodes: int = 4000
    seed: int = 8


class MLP(nn.Module):
    def __init__(self, sizes, activate_final=False):
        super().__init__()
        layers = []
        for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:])):
            layers.append(nn.Linear(a, b))
            if activate_final or i < len(sizes) - 2:
                layers.append(nn.ReLU())
        self.model = nn.Sequential(*layers)

    def forward(self, x):
        return self.model(x)


class BatchA2CLoss:
    def __init__(self, entropy_cost):
        self.entropy_cost = entropy_cost

    def loss(self, policy_logits, baseline, actions, returns):
        log_prob = F.log_softmax(policy_logits, dim=-1)
        advantage = (returns - baseline.squeeze(-1)).detach()
        chosen = log_prob.gather(1, actions[:, None]).squeeze(1)
        entropy = -(log_prob.exp() * log_prob).sum(-1)
        return -(chosen * advantage).mean() - self.entropy_cost * entropy.mean()


class NoisyGame:
    """Payoffs have heavy tails: now and then one is a hundred times as large."""

    def __init__(self, cfg):
        self.payoff = torch.randn(cfg.info_state_size, cfg.num_actions)
        self.cfg = cfg

    def observe(self):
        return F.one_hot(torch.randint(0, self.cfg.info_state_size, ()), self.cfg.info_state_size).float()

    def play(self, obs, action):
        value = (obs @ self.payoff)[action]
        scale = 100.0 if torch.rand(()) < 0.01 else 1.0
        return (value + 0.1 * torch.randn(())) * scale


class PolicyGradient:
    def __init__(self, cfg):
        self.cfg = cfg
        self.net_torso = MLP((cfg.info_state_size, *cfg.hidden), activate_final=True)
        self.policy_logits_layer = nn.Linear(cfg.hidden[-1], cfg.num_actions)
        self.baseline_layer = nn.Linear(cfg.hidden[-1], 1)
        self.policy_network = nn.Sequential(self.net_torso, self.policy_logits_layer)
        self.critic_network = nn.Sequential(MLP((cfg.info_state_size, *cfg.hidden), activate_final=True), self.baseline_layer)
        self.pg_loss = BatchA2CLoss(cfg.entropy_cost)
        self.critic_optimizer = torch.optim.SGD(self.critic_network.parameters(), lr=cfg.critic_learning_rate)
        self.pi_optimizer = torch.optim.SGD(self.policy_network.parameters(), lr=cfg.pi_learning_rate)
        self.max_norm = cfg.max_global_gradient_norm
        self.dataset = []
        self.num_learn_steps = 0
        self.pi_losses, self.step_sizes = [], []

    @torch.no_grad()
    def step(self, obs):
        return torch.distributions.Categorical(logits=self.policy_network(obs)).sample()

    def add(self, obs, action, ret):
        self.dataset.append((obs, action, ret))
        if len(self.dataset) == self.cfg.batch_size:
            batch = [torch.stack(x) for x in zip(*self.dataset)]
            self.critic_update(*batch)
            self.num_learn_steps += 1
            if self.num_learn_steps % self.cfg.num_critic_before_pi == 0:
                self.pi_update(*batch)
            self.dataset = []

    def critic_update(self, obs, actions, returns):
        loss = F.smooth_l1_loss(self.critic_network(obs).squeeze(-1), returns)
        self.critic_optimizer.zero_grad()
        loss.backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.critic_network.parameters(), self.max_norm)
        self.critic_optimizer.step()

    def pi_update(self, obs, actions, returns):
        before = nn.utils.parameters_to_vector(self.policy_network.parameters()).detach()
        loss = self.pg_loss.loss(self.policy_network(obs), self.critic_network(obs), actions, returns)
        self.pi_optimizer.zero_grad()
        loss.backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.critic_network.parameters(), self.max_norm)
        self.pi_optimizer.step()
        after = nn.utils.parameters_to_vector(self.policy_network.parameters()).detach()
        self.step_sizes.append((after - before).norm().item())
        self.pi_losses.append(loss.item())


def main():
    cfg = PGConfig()
    torch.manual_seed(cfg.seed)
    game, agent = NoisyGame(cfg), PolicyGradient(cfg)
    for episode in range(cfg.episodes):
        obs = game.observe()
        action = agent.step(obs)
        agent.add(obs, action, game.play(obs, action))
        if episode % 1000 == 999:
            print(f"episode {episode + 1} pi loss {agent.pi_losses[-1]:.4f}")
    policy = F.softmax(agent.policy_network(torch.eye(cfg.info_state_size)), dim=-1).detach()
    return agent, (policy * game.payoff).sum(-1).mean().item()


if __name__ == "__main__":
    main()
