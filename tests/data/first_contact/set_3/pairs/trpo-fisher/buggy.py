"""TRPO with a Gaussian policy on a point that has to be driven to the origin."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Normal


@dataclass
class Args:
    obs_dim: int = 3
    act_dim: int = 2
    horizon: int = 20
    envs: int = 32
    gamma: float = 0.97
    max_kl: float = 0.01
    damping: float = 0.1
    iterations: int = 12
    seed: int = 3


class GaussianPolicy(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(obs_dim, 32), nn.Tanh(), nn.Linear(32, act_dim))
        self.log_std = nn.Parameter(torch.tensor([-1.5, 0.5]))

    def forward(self, obs):
        mu = self.mu(obs)
        return mu, self.log_std.expand_as(mu)


class Point:
    def __init__(self, args):
        self.args = args

    def reset(self):
        self.x, self.t = torch.randn(self.args.envs, self.args.act_dim), 0
        return self.obs()

    def obs(self):
        return torch.cat([self.x, torch.full((self.args.envs, 1), self.t / self.args.horizon)], dim=-1)

    def step(self, action):
        self.x = self.x + 0.2 * action.clamp(-2, 2)
        self.t += 1
        return self.obs(), -self.x.pow(2).sum(-1)


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


class TRPOAgent:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args = args
        self.env = Point(args)
        self.policy = GaussianPolicy(args.obs_dim, args.act_dim)
        self.old_policy = copy.deepcopy(self.policy)
        self.vf = nn.Sequential(nn.Linear(args.obs_dim, 32), nn.Tanh(), nn.Linear(32, 1))
        self.vf_optimizer = torch.optim.Adam(self.vf.parameters(), lr=1e-2)
        self.returns, self.curvature = [], []

    def gaussian_kl(self, old_policy, new_policy, obs):
        mu_old, log_std_old = old_policy(obs)
        mu, log_std = new_policy(obs)
        var_old, var = (2 * log_std_old).exp(), (2 * log_std).exp()
        kl = log_std - log_std_old + (var_old + (mu_old - mu).pow(2)) / (2.0 * var) - 0.5
        return kl.sum(-1).mean()

    def surrogate(self, obs, act, adv, old_logp):
        mu, log_std = self.policy(obs)
        logp = Normal(mu, log_std.exp()).log_prob(act).sum(-1)
        return ((logp - old_logp).exp() * adv).mean()

    def hessian_vector_product(self, obs, p):
        kl = self.gaussian_kl(self.policy, self.policy, obs)
        grads = torch.autograd.grad(kl, self.policy.parameters(), create_graph=True)
        hessian_p = torch.autograd.grad((flat(grads) * p).sum(), self.policy.parameters())
        return flat(hessian_p).detach() + self.args.damping * p

    def conjugate_gradient(self, obs, b):
        x, r, p, rr = torch.zeros_like(b), b.clone(), b.clone(), b.dot(b)
        for _ in range(8):
            hp = self.hessian_vector_product(obs, p)
            alpha = rr / (p.dot(hp) + 1e-8)
            x += alpha * p
            r -= alpha * hp
            new_rr = r.dot(r)
            p, rr = r + new_rr / (rr + 1e-10) * p, new_rr
        return x

    def update(self, obs, act, ret):
        with torch.no_grad():
            adv = ret - self.vf(obs).squeeze(-1)
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            mu, log_std = self.policy(obs)
            old_logp = Normal(mu, log_std.exp()).log_prob(act).sum(-1)
        self.old_policy.load_state_dict(self.policy.state_dict())
        gain = self.surrogate(obs, act, adv, old_logp)
        g = flat(torch.autograd.grad(gain, self.policy.parameters()))
        direction = self.conjugate_gradient(obs, g)
        shs = direction.dot(self.hessian_vector_product(obs, direction))
        self.curvature.append((shs / direction.dot(direction)).item())
        full_step = direction * (2 * self.args.max_kl / (shs + 1e-8)).sqrt()
        start = nn.utils.parameters_to_vector(self.policy.parameters()).detach()
        with torch.no_grad():
            for i in range(8):
                nn.utils.vector_to_parameters(start + 0.6**i * full_step, self.policy.parameters())
                kl = self.gaussian_kl(self.old_policy, self.policy, obs)
                if kl <= 1.5 * self.args.max_kl and self.surrogate(obs, act, adv, old_logp) > gain:
                    break
            else:
                nn.utils.vector_to_parameters(start, self.policy.parameters())
        for _ in range(10):
            loss = (self.vf(obs).squeeze(-1) - ret).pow(2).mean()
            self.vf_optimizer.zero_grad()
            loss.backward()
            self.vf_optimizer.step()
        return loss.item()

    @torch.no_grad()
    def rollout(self):
        obs, observations, actions, rewards, returns = self.env.reset(), [], [], [], []
        for _ in range(self.args.horizon):
            mu, log_std = self.policy(obs)
            action = Normal(mu, log_std.exp()).sample()
            observations, actions = observations + [obs], actions + [action]
            obs, reward = self.env.step(action)
            rewards += [reward]
        ret = torch.zeros(self.args.envs)
        for reward in reversed(rewards):
            returns.insert(0, ret := reward + self.args.gamma * ret)
        self.returns.append(torch.stack(rewards).sum(0).mean().item())
        return torch.cat(observations), torch.cat(actions), torch.cat(returns)


def main():
    agent = TRPOAgent(Args())
    for it in range(agent.args.iterations):
        vf_loss = agent.update(*agent.rollout())
        if it % 2 == 0:
            print(f"iter {it} return {agent.returns[-1]:.2f} vf loss {vf_loss:.3f}")
    return agent


if __name__ == "__main__":
    main()
