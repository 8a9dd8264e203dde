"""DDPG in the style of an educational library; the target networks follow by Polyak averaging."""
import copy
import itertools
from types import SimpleNamespace

import torch
import torch.nn as nn

config = SimpleNamespace(
    obs_dim=3,
    act_dim=1,
    gamma=0.9,
    polyak=0.98,
    pi_lr=1e-3,
    q_lr=3e-3,
    batch_size=64,
    start_steps=200,
    update_every=1,
    total_steps=700,
    max_ep_len=30,
    act_noise=0.2,
    seed=10,
)


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs_dim, 32), nn.ReLU(), nn.Linear(32, act_dim), nn.Tanh())

    def forward(self, obs):
        return self.pi(obs)


class QFunction(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(obs_dim + act_dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, act):
        return self.q(torch.cat([obs, act], dim=-1)).squeeze(-1)


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.pi = Actor(obs_dim, act_dim)
        self.q1 = QFunction(obs_dim, act_dim)
        self.q2 = QFunction(obs_dim, act_dim)

    @torch.no_grad()
    def act(self, obs):
        return self.pi(obs)


class Pendulumish:
    def reset(self):
        self.theta, self.omega = (torch.rand(2) * 2 - 1).unbind()
        return self.obs()

    def obs(self):
        return torch.stack([self.theta.cos(), self.theta.sin(), self.omega])

    def step(self, act):
        reward = 1.0 - self.theta.pow(2) - 0.1 * self.omega.pow(2)
        self.omega = (self.omega + 0.3 * self.theta.sin() + 0.5 * act[0]).clamp(-3, 3)
        self.theta = (self.theta + 0.2 * self.omega).clamp(-2, 2)
        return self.obs(), reward


class ReplayBuffer:
    def __init__(self, obs_dim, act_dim, size):
        self.obs, self.obs2 = torch.zeros(size, obs_dim), torch.zeros(size, obs_dim)
        self.act, self.rew = torch.zeros(size, act_dim), torch.zeros(size)
        self.n, self.size = 0, size

    def store(self, obs, act, rew, obs2):
        i = self.n % self.size
        self.obs[i], self.act[i], self.rew[i], self.obs2[i] = obs, act, rew, obs2
        self.n += 1

    def sample(self, batch_size):
        idx = torch.randint(0, min(self.n, self.size), (batch_size,))
        return self.obs[idx], self.act[idx], self.rew[idx], self.obs2[idx]


class Agent:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.ac = ActorCritic(cfg.obs_dim, cfg.act_dim)
        self.ac_targ = copy.deepcopy(self.ac)
        for p in self.ac_targ.parameters():
            p.requires_grad = False
        q_params = itertools.chain(self.ac.q1.parameters(), self.ac.q2.parameters())
        self.pi_optimizer = torch.optim.Adam(self.ac.pi.parameters(), lr=cfg.pi_lr)
        self.q_optimizer = torch.optim.Adam(q_params, lr=cfg.q_lr)
        self.averaged = zip(self.ac.parameters(), self.ac_targ.parameters())
        self.log = {"q": [], "pi": [], "qval": []}

    def compute_loss_q(self, obs, act, rew, obs2):
        q1, q2 = self.ac.q1(obs, act), self.ac.q2(obs, act)
        with torch.no_grad():
            a2 = self.ac_targ.pi(obs2)
            backup = rew + self.cfg.gamma * torch.min(self.ac_targ.q1(obs2, a2), self.ac_targ.q2(obs2, a2))
        return (q1 - backup).pow(2).mean() + (q2 - backup).pow(2).mean(), q1.mean()

    def update(self, data):
        loss_q, qval = self.compute_loss_q(*data)
        self.q_optimizer.zero_grad()
        loss_q.backward()
        self.q_optimizer.step()
        self.ac.q1.requires_grad_(False)
        loss_pi = -self.ac.q1(data[0], self.ac.pi(data[0])).mean()
        self.pi_optimizer.zero_grad()
        loss_pi.backward()
        self.pi_optimizer.step()
        self.ac.q1.requires_grad_(True)
        with torch.no_grad():
            for p, p_targ in self.averaged:
                p_targ.mul_(self.cfg.polyak).add_(p, alpha=1 - self.cfg.polyak)
        for key, value in zip(self.log, (loss_q, loss_pi, qval)):
            self.log[key].append(value.item())


def main():
    agent, env = Agent(config), Pendulumish()
    buffer = ReplayBuffer(config.obs_dim, config.act_dim, 2000)
    obs = env.reset()
    for t in range(config.total_steps):
        act = torch.rand(1) * 2 - 1 if t < config.start_steps else agent.ac.act(obs)
        act = (act + config.act_noise * torch.randn(1)).clamp(-1, 1)
        obs2, reward = env.step(act)
        buffer.store(obs, act, reward, obs2)
        obs = env.reset() if (t + 1) % config.max_ep_len == 0 else obs2
        if t >= config.start_steps and t % config.update_every == 0:
            agent.update(buffer.sample(config.batch_size))
        if t % 125 == 124 and agent.log["q"]:
            print(f"t {t + 1} loss q {agent.log['q'][-1]:.4f} q value {agent.log['qval'][-1]:.3f}")
    return agent


if __name__ == "__main__":
    main()
