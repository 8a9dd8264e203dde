import torch
import torch.nn as nn
from torch.func import functional_call


class Policy(nn.Module):
    def __init__(self, obs=4, actions=3, hidden=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, actions))

    def forward(self, x):
        return torch.log_softmax(self.net(x), dim=-1)


class IntrinsicReward(nn.Module):
    def __init__(self, obs=4, actions=3, hidden=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs + actions, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x, a):
        return self.net(torch.cat([x, nn.functional.one_hot(a, 3).float()], dim=1)).squeeze(1)


class Bandit:
    def __init__(self):
        self.key = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))

    def batch(self, policy, n):
        x = torch.randn(n, 4)
        with torch.no_grad():
            a = torch.multinomial(policy(x).exp(), 1).squeeze(1)
        r = (a == (x @ self.key).argmax(1)).float()
        return x, a, r


def policy_loss(logp, a, weights):
    return -(logp.gather(1, a[:, None]).squeeze(1) * weights).mean()


def main():
    torch.manual_seed(0)
    env, policy, reward = Bandit(), Policy(), IntrinsicReward()
    reward_opt = torch.optim.Adam(reward.parameters(), lr=2e-2)
    inner_lr, inner_steps = 0.5, 2
    for it in range(160):
        params = dict(policy.named_parameters())
        fast = params
        for _ in range(inner_steps):
            x, a, _ = env.batch(policy, 256)
            intrinsic, logp = reward(x, a), functional_call(policy, fast, (x,))
            entropy = -(logp.exp() * logp).sum(1).mean()
            loss = policy_loss(logp, a, intrinsic - intrinsic.mean()) - 0.1 * entropy
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {k: p - inner_lr * g for (k, p), g in zip(fast.items(), grads)}

        x, a, r = env.batch(policy, 512)
        with torch.no_grad():
            behaviour = policy(x).gather(1, a[:, None]).squeeze(1)
        logp = functional_call(policy, fast, (x,)).gather(1, a[:, None]).squeeze(1)
        outer = -((logp - behaviour).exp() * (r - r.mean())).mean()
        reward_opt.zero_grad()
        meta_grads = torch.autograd.grad(outer, list(reward.parameters()))
        for p, g in zip(reward.parameters(), meta_grads):
            p.grad = g
        nn.utils.clip_grad_norm_(reward.parameters(), 1.0)
        reward_opt.step()

        with torch.no_grad():
            for name, p in policy.named_parameters():
                p.copy_(fast[name])
        if (it + 1) % 40 == 0:
            print(f"iter {it + 1}  outer {outer.item():.4f}  reward {r.mean().item():.3f}")
    return {"reward": r.mean().item()}


if __name__ == "__main__":
    main()
