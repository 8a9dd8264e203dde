"""PPO with minibatches, generalised advantages and an early stop on the KL divergence."""
from dataclasses import dataclass

import torch
from torch import nn, optim
from torch.distributions import Categorical


@dataclass
class Args:
    num_envs: int = 16
    num_steps: int = 16
    iterations: int = 25
    update_epochs: int = 6
    num_minibatches: int = 4
    learning_rate: float = 6e-3
    gamma: float = 0.95
    gae_lambda: float = 0.9
    clip_coef: float = 0.2
    ent_coef: float = 0.005
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float = 0.02
    seed: int = 9


class VectorGrid:
    """Walk on a ring of cells to the goal cell."""

    cells = 8

    def __init__(self, n):
        self.n = n
        self.position = torch.randint(self.cells, (n,))
        self.goal = torch.randint(self.cells, (n,))

    def observe(self):
        eye = torch.eye(self.cells)
        return torch.cat([eye[self.position], eye[self.goal]], dim=1)

    def step(self, action):
        self.position = (self.position + action - 1) % self.cells
        done = self.position == self.goal
        reward = torch.where(done, 1.0, -0.1)
        self.position = torch.where(done, torch.randint(self.cells, (self.n,)), self.position)
        self.goal = torch.where(done, torch.randint(self.cells, (self.n,)), self.goal)
        return self.observe(), reward, done.float()


class Agent(nn.Module):
    def __init__(self, inputs, actions):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(inputs, 48), nn.Tanh(), nn.Linear(48, 1))
        self.actor = nn.Sequential(nn.Linear(inputs, 48), nn.Tanh(), nn.Linear(48, actions))

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def get_action_and_value(self, x, action=None):
        dist = Categorical(logits=self.actor(x))
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action), dist.entropy(), self.get_value(x)


class PPO:
    def __init__(self, args):
        self.args = args
        self.envs = VectorGrid(args.num_envs)
        self.agent = Agent(2 * VectorGrid.cells, 3)
        self.optimizer = optim.Adam(self.agent.parameters(), lr=args.learning_rate, eps=1e-5)
        self.obs = self.envs.observe()
        self.stops = 0

    @torch.no_grad()
    def rollout(self):
        rows = []
        for _ in range(self.args.num_steps):
            action, logprob, _, value = self.agent.get_action_and_value(self.obs)
            next_obs, reward, done = self.envs.step(action)
            rows.append((self.obs, action, logprob, value, reward, done))
            self.obs = next_obs
        obs, actions, logprobs, values, rewards, dones = (torch.stack(c) for c in zip(*rows))
        advantages, last = torch.zeros_like(rewards), 0.0
        next_value = self.agent.get_value(self.obs)
        for t in reversed(range(self.args.num_steps)):
            delta = rewards[t] + self.args.gamma * next_value * (1 - dones[t]) - values[t]
            last = delta + self.args.gamma * self.args.gae_lambda * (1 - dones[t]) * last
            advantages[t], next_value = last, values[t]
        data = (obs, actions, logprobs, advantages, advantages + values)
        return [c.flatten(0, 1) for c in data], rewards.mean().item()

    def minibatches(self, data):
        order = torch.randperm(len(data[0]))
        for index in order.chunk(self.args.num_minibatches):
            yield [column[index] for column in data]

    def loss(self, obs, action, old_logprob, advantage, returns):
        args = self.args
        _, logprob, entropy, value = self.agent.get_action_and_value(obs, action)
        logratio = logprob - old_logprob
        ratio = logratio.exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        pg_loss = -torch.min(advantage * ratio, advantage * clipped).mean()
        v_loss = 0.5 * (value - returns).pow(2).mean()
        approx_kl = ((ratio - 1) - logratio).mean().detach()
        return pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss, approx_kl

    def update(self, data):
        for _ in range(self.args.update_epochs):
            for batch in self.minibatches(data):
                loss, approx_kl = self.loss(*batch)
                loss.backward()
                if approx_kl > 1.5 * self.args.target_kl:
                    self.stops += 1
                    return loss.item()
                nn.utils.clip_grad_norm_(self.agent.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return loss.item()


def main():
    args = Args()
    torch.manual_seed(args.seed)
    ppo = PPO(args)
    for iteration in range(args.iterations):
        data, reward = ppo.rollout()
        for group in ppo.optimizer.param_groups:
            group["lr"] = args.learning_rate * (1 - iteration / args.iterations)
        loss = ppo.update(data)
        if iteration % 6 == 0:
            print(f"iteration {iteration} loss {loss:.4f} reward {reward:.3f} stops {ppo.stops}")
    return {"reward": reward, "early_stops": ppo.stops}


if __name__ == "__main__":
    main()
