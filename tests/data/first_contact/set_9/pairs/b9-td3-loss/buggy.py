import copy

import torch
from torch import nn
from torch.func import functional_call


class MLP(nn.Sequential):
    def __init__(self, in_features, out_features, num_cells=48, final=None):
        layers = [
            nn.Linear(in_features, num_cells),
            nn.ReLU(),
            nn.Linear(num_cells, num_cells),
            nn.ReLU(),
            nn.Linear(num_cells, out_features),
        ]
        if final is not None:
            layers.append(final)
        super().__init__(*layers)


class QValueActor(nn.Module):
    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.net = MLP(obs_dim + action_dim, 1)

    def forward(self, observation, action):
        return self.net(torch.cat([observation, action], dim=-1)).squeeze(-1)


class SoftUpdate:
    def __init__(self, loss_module, tau):
        self.loss_module = loss_module
        self.tau = tau

    @torch.no_grad()
    def step(self):
        for source, dest in zip(self.loss_module.qvalue, self.loss_module.target_qvalue):
            for p, t in zip(source.parameters(), dest.parameters()):
                t.lerp_(p, self.tau)


class TD3Loss(nn.Module):
    def __init__(self, actor, qvalue, gamma=0.9, policy_noise=0.1, noise_clip=0.3):
        super().__init__()
        self.actor = actor
        self.qvalue = qvalue
        self.target_qvalue = copy.deepcopy(qvalue).requires_grad_(False)
        self.gamma = gamma
        self.policy_noise = policy_noise
        self.noise_clip = noise_clip

    def _frozen_q(self, observation, action):
        q = self.qvalue[0]
        params = {name: p.detach() for name, p in q.named_parameters()}
        return functional_call(q, params, (observation, action))

    def _next_action(self, observation):
        action = self.actor(observation)
        noise = (torch.randn_like(action) * self.policy_noise).clamp(
            -self.noise_clip, self.noise_clip
        )
        return (action + noise).clamp(-1.0, 1.0)

    def actor_loss(self, td):
        observation = td["observation"]
        return -self._frozen_q(observation, self.actor(observation)).mean()

    def qvalue_loss(self, td):
        next_action = self._next_action(td["next_observation"])
        next_q = torch.stack(
            [q(td["next_observation"], next_action) for q in self.target_qvalue]
        ).amin(dim=0)
        target_value = td["reward"] + self.gamma * (1.0 - td["done"]) * next_q
        losses = [
            nn.functional.mse_loss(q(td["observation"], td["action"]), target_value)
            for q in self.qvalue
        ]
        return sum(losses)

    def forward(self, td):
        return {"loss_actor": self.actor_loss(td), "loss_qvalue": self.qvalue_loss(td)}


class ReplayBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.storage = None
        self.size = 0

    def extend(self, td):
        if self.storage is None:
            self.storage = {k: torch.zeros(self.capacity, *v.shape[1:]) for k, v in td.items()}
        n = len(td["reward"])
        index = (torch.arange(n) + self.size) % self.capacity
        for k, v in td.items():
            self.storage[k][index] = v
        self.size += n

    def sample(self, batch_size):
        index = torch.randint(min(self.size, self.capacity), (batch_size,))
        return {k: v[index] for k, v in self.storage.items()}


def env_step(state, action):
    drift = torch.stack([state[:, 1], -0.5 * torch.sin(2 * state[:, 0])], dim=-1)
    next_state = state + 0.2 * drift
    next_state[:, 1] += 0.5 * action.squeeze(-1)
    reward = -(next_state[:, 0] - 0.5).pow(2) - 0.1 * next_state[:, 1].pow(2)
    done = (next_state.abs() > 3).any(dim=-1).float()
    return next_state, reward, done


@torch.no_grad()
def collect(actor, state, epsilon):
    action = (actor(state) + epsilon * torch.randn(state.shape[0], 1)).clamp(-1, 1)
    next_state, reward, done = env_step(state, action)
    td = {
        "observation": state,
        "action": action,
        "reward": reward,
        "next_observation": next_state,
        "done": done,
    }
    restart = (done > 0) | (torch.rand(len(done)) < 0.05)
    fresh = torch.randn_like(next_state)
    return td, torch.where(restart[:, None], fresh, next_state)


def main():
    torch.manual_seed(4)
    actor = MLP(2, 1, final=nn.Tanh())
    qvalue = nn.ModuleList([QValueActor(2, 1), QValueActor(2, 1)])
    loss_module = TD3Loss(actor, qvalue)
    updater = SoftUpdate(loss_module, tau=0.02)
    optimizers = {
        "loss_actor": torch.optim.SGD(actor.parameters(), lr=5e-3),
        "loss_qvalue": torch.optim.Adam(qvalue.parameters(), lr=1e-3),
    }
    buffer = ReplayBuffer(4096)
    state = torch.randn(32, 2)
    for step in range(200):
        td, state = collect(actor, state, epsilon=0.3)
        buffer.extend(td)
        batch = buffer.sample(64)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        losses = loss_module(batch)
        for name in optimizers:
            losses[name].backward()
        for optimizer in optimizers.values():
            optimizer.step()
        updater.step()
        if step % 40 == 39:
            values = " ".join(f"{k} {v.item():.4f}" for k, v in losses.items())
            print(f"step {step + 1} reward {td['reward'].mean().item():.3f} {values}")


if __name__ == "__main__":
    main()
