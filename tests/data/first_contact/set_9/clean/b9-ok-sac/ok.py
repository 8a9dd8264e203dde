import copy

import torch
from torch import nn
from torch.distributions import Normal


def mlp(i, o, h=48):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Policy(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.net = mlp(obs_dim, 2 * act_dim)

    def forward(self, obs, deterministic=False):
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        std = log_std.clamp(-5, 2).exp()
        dist = Normal(mean, std)
        u = mean if deterministic else dist.rsample()
        action = torch.tanh(u)
        log_pi = dist.log_prob(u) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_pi.sum(-1)


class Critic(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.q1 = mlp(obs_dim + act_dim, 1)
        self.q2 = mlp(obs_dim + act_dim, 1)

    def forward(self, obs, action):
        x = torch.cat([obs, action], dim=-1)
        return self.q1(x).squeeze(-1), self.q2(x).squeeze(-1)


class Agent:
    def __init__(self, obs_dim=2, act_dim=1, gamma=0.9, tau=0.02):
        self.policy = Policy(obs_dim, act_dim)
        self.critic = Critic(obs_dim, act_dim)
        self.target = copy.deepcopy(self.critic)
        for p in self.target.parameters():
            p.requires_grad = False
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.target_entropy = -float(act_dim)
        self.policy_opt = torch.optim.Adam(self.policy.parameters(), lr=2e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=2e-3)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=1e-2)
        self.gamma, self.tau = gamma, tau

    def update_critic(self, obs, action, reward, next_obs):
        with torch.no_grad():
            next_action, next_log_pi = self.policy(next_obs)
            q1, q2 = self.target(next_obs, next_action)
            value = torch.min(q1, q2) - self.log_alpha.exp() * next_log_pi
            backup = reward + self.gamma * value
        q1, q2 = self.critic(obs, action)
        loss = (q1 - backup).pow(2).mean() + (q2 - backup).pow(2).mean()
        self.critic_opt.zero_grad()
        loss.backward()
        self.critic_opt.step()
        return loss.item()

    def update_policy_and_alpha(self, obs):
        self.critic.requires_grad_(False)
        action, log_pi = self.policy(obs)
        q = torch.min(*self.critic(obs, action))
        policy_loss = (self.log_alpha.exp().detach() * log_pi - q).mean()
        self.policy_opt.zero_grad()
        policy_loss.backward()
        self.policy_opt.step()
        self.critic.requires_grad_(True)

        alpha_loss = -(self.log_alpha * (log_pi + self.target_entropy).detach()).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        return policy_loss.item()

    def soft_update(self):
        for p, t in zip(self.critic.parameters(), self.target.parameters()):
            t.data.mul_(1 - self.tau)
            t.data.add_(self.tau * p.data)


def env_step(state, action):
    next_state = state + 0.2 * torch.stack([state[:, 1], 1.5 * action[:, 0] - 0.3 * state[:, 0]], -1)
    next_state = next_state.clamp(-3, 3)
    return next_state, -(next_state[:, 0] - 1).pow(2) - 0.05 * action[:, 0].pow(2)


@torch.no_grad()
def evaluate(agent):
    state, total = torch.zeros(8, 2), 0.0
    for _ in range(20):
        action, _ = agent.policy(state, deterministic=True)
        state, reward = env_step(state, action)
        total += reward.mean().item()
    return total


def main():
    torch.manual_seed(8)
    agent = Agent()
    buffer = []
    state = torch.randn(16, 2)
    for step in range(200):
        with torch.no_grad():
            action, _ = agent.policy(state)
        next_state, reward = env_step(state, action)
        buffer.append((state, action, reward, next_state))
        state = torch.where(torch.rand(16, 1) < 0.05, torch.randn(16, 2), next_state)
        index = torch.randint(len(buffer), (4,)).tolist()
        obs, act, rew, nxt = [torch.cat(parts) for parts in zip(*[buffer[i] for i in index])]
        critic_loss = agent.update_critic(obs, act, rew, nxt)
        if step % 2 == 0:
            policy_loss = agent.update_policy_and_alpha(obs)
        agent.soft_update()
        if step % 50 == 49:
            print(
                f"step {step + 1} critic {critic_loss:.3f} policy {policy_loss:.3f} "
                f"alpha {agent.log_alpha.exp().item():.3f} return {evaluate(agent):.2f}"
            )


if __name__ == "__main__":
    main()
