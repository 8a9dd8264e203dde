"""Advantage actor-critic with vectorised environments and generalised advantage estimation."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Hyper:
    n_envs: int = 16
    n_updates: int = 80
    n_steps_per_update: int = 24
    gamma: float = 0.95
    lam: float = 0.5
    ent_coef: float = 0.01
    actor_lr: float = 2e-3
    critic_lr: float = 1e-2
    seed: int = 12


class Corridor:
    """Walk to the right end; a small cost for every move, a prize at the end."""

    def __init__(self, n_envs, length=6):
        self.n_envs, self.length = n_envs, length

    def reset(self):
        self.pos = torch.randint(0, self.length - 1, (self.n_envs,))
        return self.obs()

    def obs(self):
        return nn.functional.one_hot(self.pos, self.length).float()

    def step(self, action):
        slip = torch.rand(self.n_envs) < 0.2
        move = torch.where(slip, 1 - action, action) * 2 - 1
        self.pos = (self.pos + move).clamp(0, self.length - 1)
        done = self.pos == self.length - 1
        reward = torch.where(done, 5.0, -0.2) + 0.5 * torch.randn(self.n_envs)
        self.pos = torch.where(done, torch.zeros_like(self.pos), self.pos)
        return self.obs(), reward, done


class A2C(nn.Module):
    def __init__(self, n_features, n_actions, hyper):
        super().__init__()
        self.n_envs = hyper.n_envs
        self.critic = nn.Sequential(nn.Linear(n_features, 32), nn.ReLU(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(n_features, 32), nn.ReLU(), nn.Linear(32, n_actions))
        self.critic_optim = torch.optim.RMSprop(self.critic.parameters(), lr=hyper.critic_lr)
        self.actor_optim = torch.optim.RMSprop(self.actor.parameters(), lr=hyper.actor_lr)

    def forward(self, x):
        return self.critic(x), self.actor(x)

    def select_action(self, x):
        state_values, logits = self.forward(x)
        pd = torch.distributions.Categorical(logits=logits)
        actions = pd.sample()
        return actions, pd.log_prob(actions), state_values.squeeze(-1), pd.entropy()

    def get_losses(self, rewards, action_log_probs, value_preds, entropy, masks, gamma, lam, ent_coef):
        T = len(rewards)
        advantages = [None] * (T - 1)
        gae = torch.zeros(self.n_envs)
        for t in reversed(range(T - 1)):
            td_error = rewards[t] + gamma * masks[t] * value_preds[t + 1] - value_preds[t]
            gae = td_error + gamma * lam * masks[t] * gae
            advantages[t] = gae
        advantages = torch.stack(advantages)
        critic_loss = advantages.pow(2).mean()
        actor_loss = -(advantages.detach() * action_log_probs[:-1]).mean() - ent_coef * entropy.mean()
        return critic_loss, actor_loss

    def update_parameters(self, critic_loss, actor_loss):
        self.critic_optim.zero_grad()
        critic_loss.backward()
        self.critic_optim.step()
        self.actor_optim.zero_grad()
        actor_loss.backward()
        self.actor_optim.step()


class Runner:
    def __init__(self, hyper):
        torch.manual_seed(hyper.seed)
        self.hyper = hyper
        self.env = Corridor(hyper.n_envs)
        self.agent = A2C(self.env.length, 2, hyper)
        self.critic_losses, self.mean_rewards = [], []

    def run(self):
        states = self.env.reset()
        for phase in range(self.hyper.n_updates):
            rewards, log_probs, values, masks, entropies = [], [], [], [], []
            for _ in range(self.hyper.n_steps_per_update):
                actions, log_prob, value, entropy = self.agent.select_action(states)
                states, reward, done = self.env.step(actions)
                rewards.append(reward)
                log_probs.append(log_prob)
                values.append(value)
                entropies.append(entropy)
                masks.append((~done).float())
            critic_loss, actor_loss = self.agent.get_losses(
                torch.stack(rewards),
                torch.stack(log_probs),
                torch.stack(values),
                torch.stack(entropies),
                torch.stack(masks),
                self.hyper.gamma,
                self.hyper.lam,
                self.hyper.ent_coef,
            )
            self.agent.update_parameters(critic_loss, actor_loss)
            self.critic_losses.append(critic_loss.item())
            self.mean_rewards.append(torch.stack(rewards).mean().item())
            if phase % 20 == 0:
                print(f"update {phase} critic {critic_loss.item():.3f} actor {actor_loss.item():.3f} reward {self.mean_rewards[-1]:.3f}")
        return self

    @torch.no_grad()
    def values(self):
        return self.agent.critic(torch.eye(self.env.length)).squeeze(-1)[:-1]


def main():
    return Runner(Hyper()).run()


if __name__ == "__main__":
    main()
