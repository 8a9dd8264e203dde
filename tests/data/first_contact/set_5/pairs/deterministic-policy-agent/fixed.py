import copy
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn

Transition = namedtuple("Transition", "state action reward next_state done")


class OU:
    def __init__(self, dim, theta=0.15, sigma=0.2):
        self.theta, self.sigma, self.x = theta, sigma, torch.zeros(dim)

    def __call__(self):
        self.x = self.x - self.theta * self.x + self.sigma * torch.randn_like(self.x)
        return self.x


class Net(nn.Module):
    def __init__(self, d_in, d_out, squash):
        super().__init__()
        self.l1, self.l2 = nn.Linear(d_in, 32), nn.Linear(32, d_out)
        self.squash = squash

    def forward(self, *xs):
        y = self.l2(F.relu(self.l1(torch.cat(xs, -1))))
        return torch.tanh(y) if self.squash else y


class PointMass:
    """One-dimensional mass that is to be brought to rest at the origin."""

    def reset(self):
        self.s = torch.randn(2)
        self.t = 0
        return self.s

    def step(self, a):
        pos, vel = self.s
        vel = 0.9 * vel + 0.3 * a.squeeze()
        self.s = torch.stack([pos + 0.1 * vel, vel])
        self.t += 1
        return self.s, -(pos**2 + 0.1 * vel**2), self.t >= 40


class DDPG:
    def __init__(self, gamma=0.97, tau=0.02, lr=1e-3, batch_size=64):
        self.actor, self.critic = Net(2, 1, True), Net(3, 1, False)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=lr)
        self.gamma, self.tau, self.batch_size = gamma, tau, batch_size
        self.memory, self.noise = [], OU(1)

    @torch.no_grad()
    def act(self, state):
        return (self.actor(state) + self.noise()).clamp(-1, 1)

    def learn(self):
        picks = torch.randint(len(self.memory), (self.batch_size,)).tolist()
        s, a, r, s2, d = (torch.stack(col) for col in zip(*(self.memory[i] for i in picks)))
        with torch.no_grad():
            next_q = self.target_critic(s2, self.target_actor(s2))
            target_q = r.unsqueeze(1) + (1 - d.unsqueeze(1)) * self.gamma * next_q
        critic_loss = F.mse_loss(self.critic(s, a), target_q)
        self.critic_optimizer.zero_grad(set_to_none=True)
        critic_loss.backward()
        self.critic_optimizer.step()

        actor_loss = -self.critic(s, self.actor(s)).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        actor_loss.backward()
        self.actor_optimizer.step()
        return critic_loss.item()

    def update_target_soft(self):
        with torch.no_grad():
            for t_p, p in zip(self.target_critic.parameters(), self.critic.parameters()):
                t_p.data.copy_(self.tau * p.data + (1 - self.tau) * t_p.data)
            for t_p, p in zip(self.target_actor.parameters(), self.actor.parameters()):
                t_p.data.copy_(self.tau * p.data + (1 - self.tau) * t_p.data)


def main():
    torch.manual_seed(8)
    env, agent = PointMass(), DDPG()
    state = env.reset()
    for step in range(500):
        action = agent.act(state)
        next_state, reward, done = env.step(action)
        agent.memory.append(Transition(state, action, reward, next_state, torch.tensor(float(done))))
        state = env.reset() if done else next_state
        if step >= 100:
            loss = agent.learn()
            agent.update_target_soft()
    print(f"critic loss {loss:.4f}")
    return {"agent": agent}

if __name__ == "__main__":
    main()
