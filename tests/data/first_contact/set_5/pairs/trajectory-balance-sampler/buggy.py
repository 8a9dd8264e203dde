import math

import torch
import torch.nn as nn


class Line:
    """States 0..length-1; actions: 0 moves right, 1 stops. Reward peaks in the middle."""

    def __init__(self, length=6):
        self.length = length
        self.n_actions = 2

    def encode(self, states):
        return torch.nn.functional.one_hot(states, self.length).float()

    def invalid(self, states):
        mask = torch.zeros(len(states), self.n_actions, dtype=torch.bool)
        mask[:, 0] = states == self.length - 1
        return mask

    def log_reward(self, states):
        centre = (self.length - 1) / 2
        return -((states.float() - centre) ** 2) / 2 + math.log(5.0)

    def get_logprobs(self, policy_outputs, states, actions):
        logits = policy_outputs.clone().detach()
        logits[self.invalid(states)] = -1000.0
        logprobs = logits.log_softmax(dim=1)
        return logprobs.gather(1, actions.unsqueeze(1)).squeeze(1)


class Policy(nn.Module):
    def __init__(self, env, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(env.length, width), nn.LeakyReLU(), nn.Linear(width, env.n_actions))

    def forward(self, x):
        return self.body(x)


class GFlowNetAgent:
    def __init__(self, env, lr=5e-3, lr_z=5e-2, batch=32):
        self.env, self.batch = env, batch
        self.forward_policy = Policy(env)
        self.logZ = nn.Parameter(torch.zeros(1))
        self.opt = torch.optim.Adam(
            [{"params": self.forward_policy.parameters(), "lr": lr}, {"params": [self.logZ], "lr": lr_z}]
        )

    @torch.no_grad()
    def sample_actions(self, states):
        logits = self.forward_policy(self.env.encode(states))
        logits[self.env.invalid(states)] = -1000.0
        return torch.distributions.Categorical(logits=logits).sample()

    def rollout(self):
        states = torch.zeros(self.batch, dtype=torch.long)
        done = torch.zeros(self.batch, dtype=torch.bool)
        logpf = torch.zeros(self.batch)
        while not done.all():
            actions = self.sample_actions(states)
            out = self.forward_policy(self.env.encode(states))
            step_logp = self.env.get_logprobs(out, states, actions)
            logpf = logpf + torch.where(done, torch.zeros_like(step_logp), step_logp)
            done = done | (actions == 1)
            states = torch.where(done, states, states + 1)
        return states, logpf

    def train_step(self):
        states, logpf = self.rollout()
        loss = (self.logZ + logpf - self.env.log_reward(states)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def main():
    torch.manual_seed(7)
    agent = GFlowNetAgent(Line())
    before = [p.detach().clone() for p in agent.forward_policy.parameters()]
    losses = [agent.train_step() for _ in range(150)]
    print(f"loss {losses[0]:.3f} -> {sum(losses[-10:]) / 10:.3f}, logZ {agent.logZ.item():.3f}")
    return {"agent": agent, "before": before, "losses": losses}

if __name__ == "__main__":
    main()
