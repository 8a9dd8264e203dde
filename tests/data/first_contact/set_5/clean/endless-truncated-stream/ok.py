"""A recurrent Q network on one endless stream: the state goes on over updates, the graph does not."""
from collections import deque

import torch
import torch.nn as nn


class StreamNet(nn.Module):
    def __init__(self, inputs=3, hidden=24, actions=3):
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)
        self.q = nn.Linear(hidden, actions)
        self.register_buffer("h", torch.zeros(1, hidden))
        self.register_buffer("c", torch.zeros(1, hidden))

    def cut(self):
        self.h, self.c = self.h.detach(), self.c.detach()

    def forward(self, x):
        self.h, self.c = self.cell(x, (self.h, self.c))
        return self.q(self.h)


class Cue:
    """A cue is shown; three steps later the action of that cue is paid."""

    def __init__(self, delay=3):
        self.delay = delay
        self.start()

    def start(self):
        self.cue, self.t = torch.randint(3, ()).item(), 0

    def observe(self):
        x = torch.zeros(1, 3)
        if self.t == 0:
            x[0, self.cue] = 1.0
        return x

    def act(self, action):
        last = self.t == self.delay
        reward = float(last and action == self.cue)
        self.t += 1
        if last:
            self.start()
        return reward, last


class OnlineLearner:
    def __init__(self, net, lr=1e-2, gamma=0.8, epsilon=0.3, window=8):
        self.net, self.gamma, self.epsilon, self.window = net, gamma, epsilon, window
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)
        self.pending, self.recent = [], deque(maxlen=400)

    def choose(self, q):
        if torch.rand(()) < self.epsilon:
            return torch.randint(q.size(1), ()).item()
        return q.argmax(1).item()

    def record(self, q, action, reward, last):
        # with its graph, on purpose: the whole window is differentiated at its end (the last
        # entry only gives the target of the one before it)
        self.pending.append((q[0, action], q.max(1).values.squeeze(0).detach(), reward, last))
        if last:
            self.recent.append(reward)
        if len(self.pending) > self.window:
            self.learn()

    def learn(self):
        errors = []
        for (q, _, r, last), (_, following, _, _) in zip(self.pending[:-1], self.pending[1:]):
            target = r if last else r + self.gamma * following
            errors.append((q - target).pow(2))
        loss = torch.stack(errors).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.pending.clear()
        self.net.cut()


def main(steps=2500):
    torch.manual_seed(9)
    learner, env = OnlineLearner(StreamNet()), Cue()
    for _ in range(steps):
        q = learner.net(env.observe())
        action = learner.choose(q)
        reward, last = env.act(action)
        learner.record(q, action, reward, last)
    print(f"paid share of the last {len(learner.recent)} cues: {sum(learner.recent) / len(learner.recent):.3f}")


if __name__ == "__main__":
    main()
