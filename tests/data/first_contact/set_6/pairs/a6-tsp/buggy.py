"""Reinforced tour construction with an attention pointer and a learned baseline."""
import torch
from torch import nn


class Config:
    batch_size = 64
    n_cities = 8
    hidden = 32
    steps = 40
    lr = 1e-3
    max_norm = 5.0
    seed = 5


class GraphEncoder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embed = nn.Linear(2, hidden)
        self.attn = nn.MultiheadAttention(hidden, 4, batch_first=True)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, cities):
        h = self.embed(cities)
        return self.norm(h + self.attn(h, h, h, need_weights=False)[0])


class Actor(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = GraphEncoder(cfg.hidden)
        self.query = nn.Linear(2 * cfg.hidden, cfg.hidden)
        self.key = nn.Linear(cfg.hidden, cfg.hidden)

    def forward(self, cities):
        h = self.encoder(cities)
        b, n, _ = h.shape
        keys = self.key(h)
        mask = torch.zeros(b, n, dtype=torch.bool)
        current = h.mean(1)
        tour, log_prob = [], 0.0
        for _ in range(n):
            q = self.query(torch.cat([h.mean(1), current], dim=1))
            logits = (keys @ q.unsqueeze(2)).squeeze(2) / keys.shape[2] ** 0.5
            dist = torch.distributions.Categorical(logits=logits.masked_fill(mask, float("-inf")))
            idx = dist.sample()
            log_prob = log_prob + dist.log_prob(idx)
            mask = mask.scatter(1, idx.unsqueeze(1), True)
            current = h[torch.arange(b), idx]
            tour.append(idx)
        return torch.stack(tour, dim=1), log_prob


class Critic(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = GraphEncoder(cfg.hidden)
        self.head = nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, 1))

    def forward(self, cities):
        return self.head(self.encoder(cities).mean(1)).squeeze(1)


def tour_length(cities, tour):
    ordered = cities.gather(1, tour.unsqueeze(2).expand(-1, -1, 2))
    return (ordered - ordered.roll(-1, dims=1)).norm(dim=2).sum(1)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.actor = Actor(cfg)
        self.critic = Critic(cfg)
        self.act_optim = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr)
        self.crit_optim = torch.optim.Adam(self.critic.parameters(), lr=cfg.lr)
        self.mse = nn.MSELoss()
        self.history = []

    def step(self):
        cities = torch.rand(self.cfg.batch_size, self.cfg.n_cities, 2)
        tour, log_prob = self.actor(cities)
        reward = tour_length(cities, tour)
        value = self.critic(cities)

        self.act_optim.zero_grad()
        self.crit_optim.zero_grad()

        advantage = reward - value
        actor_loss = (advantage * log_prob).mean()
        critic_loss = self.mse(value, reward)
        actor_loss.backward(retain_graph=True)
        critic_loss.backward()

        nn.utils.clip_grad_norm_(self.actor.parameters(), self.cfg.max_norm)
        nn.utils.clip_grad_norm_(self.critic.parameters(), self.cfg.max_norm)
        self.act_optim.step()
        self.crit_optim.step()
        self.history.append((reward.mean().item(), value.mean().item()))

    def fit(self):
        for i in range(self.cfg.steps):
            self.step()
            if i % 10 == 9:
                length, value = self.history[-1]
                print(f"step {i + 1:3d} length {length:.3f} baseline {value:.3f}")
        return self


def main():
    torch.manual_seed(Config.seed)
    return Trainer(Config()).fit()


if __name__ == "__main__":
    main()
