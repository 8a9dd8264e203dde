"""QMIX for two cooperating agents on a one-step-ahead matching task."""
import copy
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

args = SimpleNamespace(n_agents=2, n_actions=3, obs_dim=3, state_dim=6, hidden=24, embed=8, gamma=0.9,
                       lr=2e-3, grad_norm_clip=5.0, target_update_cycle=20, batch=48, train_steps=240, seed=2)


class AgentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(args.obs_dim + args.n_agents, args.hidden)
        self.fc2 = nn.Linear(args.hidden, args.n_actions)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


class QMixNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hyper_w1 = nn.Linear(args.state_dim, args.n_agents * args.embed)
        self.hyper_w2 = nn.Linear(args.state_dim, args.embed)
        self.hyper_b1 = nn.Linear(args.state_dim, args.embed)
        self.hyper_b2 = nn.Sequential(nn.Linear(args.state_dim, args.embed), nn.ReLU(), nn.Linear(args.embed, 1))

    def forward(self, q_values, states):
        n = q_values.size(0)
        w1 = self.hyper_w1(states).abs().view(n, args.n_agents, args.embed)
        hidden = F.elu(torch.bmm(q_values.unsqueeze(1), w1) + self.hyper_b1(states).unsqueeze(1))
        w2 = self.hyper_w2(states).abs().view(n, args.embed, 1)
        return (torch.bmm(hidden, w2).squeeze(1) + self.hyper_b2(states)).squeeze(1)


class QMIX:
    def __init__(self):
        self.eval_net, self.eval_qmix_net = AgentNet(), QMixNet()
        self.target_net, self.target_qmix_net = AgentNet(), QMixNet()
        self.target_net.load_state_dict(self.eval_net.state_dict())
        self.target_qmix_net.load_state_dict(self.eval_qmix_net.state_dict())
        self.eval_parameters = list(self.eval_net.parameters()) + list(self.eval_qmix_net.parameters())
        self.optimizer = torch.optim.RMSprop(self.eval_parameters, lr=args.lr)

    @staticmethod
    def with_ids(obs):
        ids = torch.eye(args.n_agents).expand(obs.size(0), -1, -1)
        return torch.cat([obs, ids], -1)

    def get_q(self, net, obs):
        return net(self.with_ids(obs))

    def learn(self, batch, train_step):
        q = self.get_q(self.eval_net, batch["o"]).gather(2, batch["u"].unsqueeze(2)).squeeze(2)
        q_total = self.eval_qmix_net(q, batch["o"].flatten(1))
        with torch.no_grad():
            q_next = self.get_q(self.target_net, batch["o_next"]).max(2).values
            q_total_target = self.target_qmix_net(q_next, batch["o_next"].flatten(1))
            targets = batch["r"] + args.gamma * (1 - batch["done"]) * q_total_target
        loss = F.mse_loss(q_total, targets)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.eval_parameters, args.grad_norm_clip)
        self.optimizer.step()
        if train_step > 0 and train_step % args.target_update_cycle == 0:
            self.target_net.load_state_dict(self.eval_net.state_dict())
            self.target_qmix_net.load_state_dict(self.target_qmix_net.state_dict())
        return loss.item()


class EpisodeBuffer:
    def __init__(self, size, gen):
        o = torch.randn(size, args.n_agents, args.obs_dim, generator=gen)
        u = torch.randint(0, args.n_actions, (size, args.n_agents), generator=gen)
        onehot = F.one_hot(u, args.n_actions).float()
        r = (onehot * o).sum((1, 2)) + (u[:, 0] == u[:, 1]).float()
        o_next = 0.7 * o + 0.5 * onehot.flip(1)
        done = (torch.rand(size, generator=gen) < 0.1).float()
        self.data = {"o": o, "u": u, "r": r, "o_next": o_next, "done": done}
        self.gen, self.size = gen, size

    def sample(self, n):
        idx = torch.randint(0, self.size, (n,), generator=self.gen)
        return {k: v[idx] for k, v in self.data.items()}


def main():
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    buffer, policy = EpisodeBuffer(2000, gen), QMIX()
    start = copy.deepcopy(policy.target_qmix_net.state_dict())
    for step in range(args.train_steps):
        loss = policy.learn(buffer.sample(args.batch), step)
        if step % 80 == 0:
            print(f"train step {step} loss {loss:.4f}")
    with torch.no_grad():
        d = buffer.data
        q = policy.get_q(policy.eval_net, d["o"]).max(2).values
        value = policy.eval_qmix_net(q, d["o"].flatten(1)).mean().item()
        moved = sum((v - start[k]).abs().sum().item() for k, v in policy.target_qmix_net.state_dict().items())
    result = {"greedy_value": round(value, 3), "target_mixer_moved": round(moved, 3), "loss": round(loss, 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
