import random
from collections import deque
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    obs_dim: int = 6
    n_actions: int = 4
    rnn_hidden: int = 32
    episode_limit: int = 12
    capacity: int = 200
    batch: int = 4
    episodes: int = 40
    gamma: float = 0.95
    lr: float = 2e-3


class Episode:
    def __init__(self):
        self.rows = []

    def add(self, **row):
        self.rows.append(row)

    def column(self, key):
        return torch.stack([row[key] for row in self.rows])


class GridWorld:
    """The agent is paid for picking the index of the largest observation."""

    def __init__(self, args, rng):
        self.args, self.rng = args, rng

    def observe(self):
        self.obs = torch.randn(self.args.obs_dim, generator=self.rng)
        return self.obs

    def step(self, action):
        best = self.obs[: self.args.n_actions].argmax()
        return torch.tensor(1.0 if int(action) == int(best) else 0.0)


class RNNAgent(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.inp = nn.Linear(args.obs_dim, args.rnn_hidden)
        self.cell = nn.GRUCell(args.rnn_hidden, args.rnn_hidden)
        self.out = nn.Linear(args.rnn_hidden, args.n_actions)

    def init_hidden(self):
        return torch.zeros(1, self.args.rnn_hidden)

    def forward(self, obs, hidden):
        hidden = self.cell(torch.relu(self.inp(obs.unsqueeze(0))), hidden)
        return self.out(hidden).squeeze(0), hidden


class EpisodeRunner:
    def __init__(self, env, agent, args):
        self.env, self.agent, self.args = env, agent, args

    def run(self):
        episode, hidden = Episode(), self.agent.init_hidden()
        for _ in range(self.args.episode_limit):
            obs = self.env.observe()
            logits, hidden = self.agent(obs, hidden)
            probs = logits.softmax(-1)
            action = torch.multinomial(probs, 1).squeeze(0)
            reward = self.env.step(action)
            episode.add(obs=obs, probs=probs, action=action, reward=reward)
        return episode


class Learner:
    def __init__(self, agent, args):
        self.agent, self.args = agent, args
        self.optimiser = torch.optim.RMSprop(agent.parameters(), lr=args.lr)

    def train(self, episodes):
        total = 0.0
        for ep in episodes:
            hidden, logits = self.agent.init_hidden(), []
            for obs in ep.column("obs"):
                out, hidden = self.agent(obs, hidden)
                logits.append(out)
            logp = torch.stack(logits).log_softmax(-1)
            taken = logp.gather(1, ep.column("action").unsqueeze(1)).squeeze(1)
            with torch.no_grad():
                behaviour = ep.column("probs").gather(1, ep.column("action").unsqueeze(1)).squeeze(1)
                weight = (taken.exp() / behaviour).clamp(max=2.0)
            total = total - (weight * taken * (ep.column("reward") - 0.25)).mean()
        loss = total / len(episodes)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.item()


def main():
    torch.manual_seed(3)
    random.seed(3)
    args = Args()
    agent = RNNAgent(args)
    runner = EpisodeRunner(GridWorld(args, torch.Generator().manual_seed(5)), agent, args)
    learner, memory = Learner(agent, args), deque(maxlen=args.capacity)
    history = []
    for _ in range(args.episodes):
        memory.append(runner.run())
        if len(memory) >= args.batch:
            history.append(learner.train(random.sample(list(memory), args.batch)))
    print(f"last loss {history[-1]:.4f}, episodes in memory {len(memory)}")
    return {"memory": memory, "history": history}

if __name__ == "__main__":
    main()
