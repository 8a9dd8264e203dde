import random

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

HYPER = {"lr_actor": 2e-3, "lr_critic": 5e-3, "gamma": 0.95, "K_epochs": 8, "eps_clip": 0.2, "update_timestep": 96, "seed": 4}


class RolloutBuffer:
    def __init__(self):
        self.actions, self.states, self.rewards, self.is_terminals = [], [], [], []

    def clear(self):
        del self.actions[:], self.states[:], self.rewards[:], self.is_terminals[:]


class Catch:
    """A ball falls through a narrow grid and the paddle has to be below it."""

    width, height = 5, 6

    def reset(self):
        self.ball, self.row, self.paddle = random.randrange(self.width), 0, self.width // 2
        return self.state()

    def state(self):
        return torch.tensor([self.ball / self.width, self.row / self.height, self.paddle / self.width, (self.ball - self.paddle) / 2.0])

    def step(self, action):
        self.paddle = min(max(self.paddle + action - 1, 0), self.width - 1)
        self.row += 1
        done = self.row == self.height - 1
        reward = (1.0 if self.ball == self.paddle else -1.0) if done else 0.0
        return self.state(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(state_dim, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, action_dim), nn.Softmax(dim=-1))
        self.critic = nn.Sequential(nn.Linear(state_dim, 32), nn.Tanh(), nn.Linear(32, 1))

    @torch.no_grad()
    def act(self, state):
        return Categorical(self.actor(state)).sample()

    def evaluate(self, state, action):
        dist = Categorical(self.actor(state))
        return dist.log_prob(action), self.critic(state).squeeze(-1), dist.entropy()


class PPO:
    def __init__(self, state_dim, action_dim, hp):
        self.hp, self.buffer = hp, RolloutBuffer()
        self.policy = ActorCritic(state_dim, action_dim)
        self.policy_old = ActorCritic(state_dim, action_dim)
        self.policy_old.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.Adam([
            {"params": self.policy.actor.parameters(), "lr": hp["lr_actor"]},
            {"params": self.policy.critic.parameters(), "lr": hp["lr_critic"]},
        ])
        self.MseLoss = nn.MSELoss()
        self.clip_fraction, self.kl = [], []

    def select_action(self, state):
        action = self.policy_old.act(state)
        self.buffer.states.append(state)
        self.buffer.actions.append(action)
        return action.item()

    def discounted_returns(self):
        rewards, running = [], 0.0
        for reward, terminal in zip(reversed(self.buffer.rewards), reversed(self.buffer.is_terminals)):
            running = reward + (0.0 if terminal else self.hp["gamma"] * running)
            rewards.insert(0, running)
        rewards = torch.tensor(rewards)
        return (rewards - rewards.mean()) / (rewards.std() + 1e-7)

    def update(self):
        rewards = self.discounted_returns()
        old_states, old_actions = torch.stack(self.buffer.states), torch.stack(self.buffer.actions)
        with torch.no_grad():
            advantages = rewards - self.policy_old.critic(old_states).squeeze(-1)
            start_logprobs = self.policy_old.evaluate(old_states, old_actions)[0]

        for _ in range(self.hp["K_epochs"]):
            with torch.no_grad():
                old_logprobs, _, _ = self.policy_old.evaluate(old_states, old_actions)
            logprobs, state_values, dist_entropy = self.policy.evaluate(old_states, old_actions)
            ratios = torch.exp(logprobs - old_logprobs)
            surr1 = ratios * advantages
            surr2 = torch.clamp(ratios, 1 - self.hp["eps_clip"], 1 + self.hp["eps_clip"]) * advantages
            loss = (-torch.min(surr1, surr2) + 0.5 * self.MseLoss(state_values, rewards) - 0.01 * dist_entropy).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.clip_fraction.append(((ratios - 1).abs() > self.hp["eps_clip"]).float().mean().item())

        self.policy_old.load_state_dict(self.policy.state_dict())
        with torch.no_grad():
            self.kl.append((start_logprobs - self.policy.evaluate(old_states, old_actions)[0]).mean().item())
        self.buffer.clear()
        return loss.item()


def main(max_training_timesteps=3000):
    random.seed(HYPER["seed"]), torch.manual_seed(HYPER["seed"])
    env, agent = Catch(), PPO(4, 3, HYPER)
    state, finished = env.reset(), []
    for t in range(1, max_training_timesteps + 1):
        state, reward, done = env.step(agent.select_action(state))
        agent.buffer.rewards.append(reward)
        agent.buffer.is_terminals.append(done)
        if done:
            finished.append(reward)
            state = env.reset()
        if t % HYPER["update_timestep"] == 0:
            loss = agent.update()
            if (t // HYPER["update_timestep"]) % 10 == 0:
                print(f"timestep {t}  loss {loss:.4f}  reward {np.mean(finished[-60:]):.2f}")
    return {"clip_fraction": float(np.mean(agent.clip_fraction)), "kl": float(np.mean(agent.kl)), "reward": float(np.mean(finished[-100:]))}


if __name__ == "__main__":
    main()
