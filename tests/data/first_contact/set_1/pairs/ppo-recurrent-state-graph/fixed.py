import dataclasses
import gc

import torch
import torch.nn as nn


@dataclasses.dataclass
class PPOConfig:
    num_envs: int = 4
    horizon: int = 8
    updates: int = 25
    epochs: int = 2
    gamma: float = 0.95
    lam: float = 0.9
    clip: float = 0.2
    vf_coef: float = 0.5
    ent_coef: float = 0.01
    lr: float = 2e-3
    max_grad_norm: float = 0.5
    seed: int = 0


class MemoryEnv:
    def __init__(self, n, length=6, seed=0):
        self.n, self.length = n, length
        self.g = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self):
        self.cue = torch.randint(0, 2, (self.n,), generator=self.g)
        self.t = 0
        return self._obs()

    def _obs(self):
        obs = torch.zeros(self.n, 3)
        if self.t == 0:
            obs[torch.arange(self.n), self.cue] = 1.0
        obs[:, 2] = float(self.t == self.length - 1)
        return obs

    def step(self, action):
        last = self.t == self.length - 1
        reward = (action == self.cue).float() if last else torch.zeros(self.n)
        self.t += 1
        done = torch.full((self.n,), float(last))
        obs = self.reset() if last else self._obs()
        return obs, reward, done


class Experience:
    def __init__(self):
        self.clear()

    def clear(self):
        self.data = {k: [] for k in ("obs", "action", "logp", "value", "reward", "done", "state")}

    def store(self, **kw):
        for k, v in kw.items():
            self.data[k].append(v)

    def stacked(self, key):
        return torch.stack(self.data[key])


class RecurrentPolicy(nn.Module):
    def __init__(self, obs_dim=3, hidden=24, actions=2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh())
        self.core = nn.GRUCell(hidden, hidden)
        self.pi = nn.Linear(hidden, actions)
        self.v = nn.Linear(hidden, 1)
        self.hidden = hidden

    def forward(self, obs, state):
        state = self.core(self.encoder(obs), state)
        return torch.distributions.Categorical(logits=self.pi(state)), self.v(state).squeeze(-1), state


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.env = MemoryEnv(cfg.num_envs, seed=cfg.seed)
        self.policy = RecurrentPolicy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=cfg.lr)
        self.experience = Experience()
        self.obs = self.env.reset()
        self.state = torch.zeros(cfg.num_envs, self.policy.hidden)

    @torch.no_grad()
    def rollout(self):
        self.experience.clear()
        for _ in range(self.cfg.horizon):
            dist, value, next_state = self.policy(self.obs, self.state)
            action = dist.sample()
            obs, reward, done = self.env.step(action)
            self.experience.store(obs=self.obs, action=action, logp=dist.log_prob(action).detach(), value=value.detach(),
                                  reward=reward, done=done, state=self.state)
            self.obs = obs
            self.state = next_state * (1.0 - done).unsqueeze(-1)
        return self.policy(self.obs, self.state)[1].detach()

    def advantages(self, last_value):
        e, cfg = self.experience, self.cfg
        values = e.stacked("value")
        adv, running, nxt = torch.zeros_like(values), 0.0, last_value
        for t in reversed(range(cfg.horizon)):
            mask = 1.0 - e.data["done"][t]
            delta = e.data["reward"][t] + cfg.gamma * nxt * mask - values[t]
            running = delta + cfg.gamma * cfg.lam * mask * running
            adv[t], nxt = running, values[t]
        return adv, adv + values

    def update(self, adv, returns):
        cfg, e = self.cfg, self.experience
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        for _ in range(cfg.epochs):
            state = e.data["state"][0].detach()
            logps, values, entropy = [], [], 0.0
            for t in range(cfg.horizon):
                dist, value, state = self.policy(e.data["obs"][t], state)
                logps.append(dist.log_prob(e.data["action"][t])), values.append(value)
                entropy = entropy + dist.entropy().mean() / cfg.horizon
                state = state * (1.0 - e.data["done"][t]).unsqueeze(-1)
            ratio = (torch.stack(logps) - e.stacked("logp")).exp()
            pg = -torch.min(ratio * adv, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * adv).mean()
            loss = pg + cfg.vf_coef * (torch.stack(values) - returns).pow(2).mean() - cfg.ent_coef * entropy
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), cfg.max_grad_norm)
            self.optimizer.step()
        return loss.item()


def main():
    cfg = PPOConfig()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    for i in range(cfg.updates):
        last_value = trainer.rollout()
        loss = trainer.update(*trainer.advantages(last_value))
        if (i + 1) % 5 == 0:
            reward = trainer.experience.stacked("reward").sum().item() / cfg.num_envs
            print(f"update {i + 1}  loss {loss:.4f}  reward {reward:.2f}")
    gc.collect()
    return trainer


if __name__ == "__main__":
    main()
