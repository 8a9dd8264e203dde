"""Actor and critic share a sequence model; the critic must not learn from the actor's objective."""
import copy

import torch
import torch.nn as nn


class Agent(nn.Module):
    def __init__(self, obs_dim=5, act_dim=2, hidden=32):
        super().__init__()
        self.trunk = nn.GRU(obs_dim, hidden, batch_first=True)
        self.actor = nn.Sequential(nn.Linear(hidden, act_dim), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(hidden + act_dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def encode(self, obs):
        return self.trunk(obs)[0]

    def value(self, state, act):
        return self.critic(torch.cat([state, act], -1))


class Trainer:
    def __init__(self, agent, lr=1e-3, gamma=0.95, tau=0.01, clip=5.0):
        self.agent, self.gamma, self.tau, self.clip = agent, gamma, tau, clip
        self.target = copy.deepcopy(agent)
        for p in self.target.parameters():
            p.requires_grad = False
        self.optim = torch.optim.AdamW(agent.parameters(), lr=lr)

    def losses(self, obs, act, rew):
        state = self.agent.encode(obs)
        with torch.no_grad():
            t_state = self.target.encode(obs)[:, 1:]
            t_value = self.target.value(t_state, self.target.actor(t_state))
            td = rew[:, :-1] + self.gamma * t_value
        q = self.agent.value(state[:, :-1], act[:, :-1])
        critic_loss = (q - td).pow(2).mean()
        actor_loss = -self.agent.value(state, self.agent.actor(state)).mean()
        return actor_loss, critic_loss

    def step(self, batch):
        actor_loss, critic_loss = self.losses(*batch)
        self.optim.zero_grad()
        # The actor's objective goes first. What it leaves in the critic head is dropped, what it
        # leaves in the trunk and the actor stays; the trunk's graph is needed once more.
        actor_loss.backward(retain_graph=True)
        self.agent.critic.zero_grad()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), self.clip)
        self.optim.step()
        self.update_target()
        return actor_loss.item(), critic_loss.item()

    @torch.no_grad()
    def update_target(self):
        for p, t in zip(self.agent.parameters(), self.target.parameters()):
            t.data.lerp_(p.data, self.tau)


def sequences(n=16, length=10):
    obs = torch.randn(n, length, 5).cumsum(1) * 0.3
    act = torch.rand(n, length, 2) * 2 - 1
    rew = -(act - torch.tanh(obs[..., :2])).pow(2).sum(-1, keepdim=True)
    return obs, act, rew


def main():
    torch.manual_seed(2)
    trainer = Trainer(Agent())
    for i in range(60):
        actor_loss, critic_loss = trainer.step(sequences())
    print(f"actor {actor_loss:.3f} critic {critic_loss:.3f}")


if __name__ == "__main__":
    main()
