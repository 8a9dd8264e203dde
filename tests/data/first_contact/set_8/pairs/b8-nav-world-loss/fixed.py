"""Navigation agent with a small world model: it imitates a guide and predicts what it is going to see."""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def dtw(a, b):
    n, m = len(a), len(b)
    cost = np.linalg.norm(a[:, None] - b[None], axis=-1)
    acc = np.full((n + 1, m + 1), np.inf)
    acc[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            acc[i, j] = cost[i - 1, j - 1] + min(acc[i - 1, j - 1], acc[i - 1, j], acc[i, j - 1])
    i, j, path = n, m, []
    while i > 0 and j > 0:
        path.append((i - 1, j - 1))
        step = int(np.argmin((acc[i - 1, j - 1], acc[i - 1, j], acc[i, j - 1])))
        i, j = (i - 1, j - 1) if step == 0 else (i - 1, j) if step == 1 else (i, j - 1)
    return float(acc[n, m]), path[::-1]


class WorldModel(nn.Module):
    def __init__(self, obs_dim=6, act_dim=4, hidden=24):
        super().__init__()
        self.encoder = nn.Linear(obs_dim, hidden)
        self.transition = nn.GRUCell(hidden + act_dim, hidden)
        self.decoder = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, obs_dim))
        self.policy = nn.Linear(hidden, act_dim)
        self.act_dim = act_dim

    def forward(self, observations, actions):
        h = observations.new_zeros(observations.shape[0], self.transition.hidden_size)
        logits, imagined = [], []
        for t in range(actions.shape[1]):
            embedded = torch.tanh(self.encoder(observations[:, t]))
            logits.append(self.policy(embedded + h))
            action = F.one_hot(actions[:, t], self.act_dim).float()
            h = self.transition(torch.cat([embedded, action], 1), h)
            imagined.append(self.decoder(h))
        return torch.stack(logits, 1), torch.stack(imagined, 1)


class NavTrainer:
    def __init__(self, model, lr=5e-3, ob_weight=0.5):
        self.model = model
        self.ob_weight = ob_weight
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4)
        self.logs = {"action": [], "observation": []}

    def observation_loss(self, im_observation, real_observation):
        im_obser = im_observation.detach().cpu().numpy()
        real_obser = real_observation.cpu().numpy()
        distances = []
        for b, (im_segment, real_segment) in enumerate(zip(im_obser, real_obser)):
            distance, path = dtw(im_segment, real_segment)
            rows, cols = (list(index) for index in zip(*path))
            gap = im_observation[b, rows] - real_observation[b, cols]
            distances.append(gap.norm(dim=-1).mean())
        return torch.stack(distances).mean()

    def train_step(self, observations, actions):
        logits, im_observation = self.model(observations, actions)
        loss_action = F.cross_entropy(logits.flatten(0, 1), actions.flatten())
        loss_ob = self.observation_loss(im_observation, observations[:, 1:])
        loss = loss_action + self.ob_weight * loss_ob
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        self.logs["action"].append(loss_action.item())
        self.logs["observation"].append(loss_ob.item())
        return loss.item()


class GridGuide:
    """Walks towards a goal on a plane; observation: position, goal and two landmarks' distances."""

    moves = torch.tensor([[0.0, 0.2], [0.0, -0.2], [0.2, 0.0], [-0.2, 0.0]])

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def observe(self, position, goal):
        near = (position - 0.5).norm(dim=1, keepdim=True)
        far = (position + 0.5).norm(dim=1, keepdim=True)
        return torch.cat([position, goal, near, far], 1)

    def rollout(self, batch=16, length=8):
        position = torch.rand(batch, 2, generator=self.generator) * 2 - 1
        goal = torch.rand(batch, 2, generator=self.generator) * 2 - 1
        observations, actions = [self.observe(position, goal)], []
        for _ in range(length):
            reached = (position[:, None] + self.moves - goal[:, None]).norm(dim=-1)
            action = reached.argmin(1)
            position = position + self.moves[action]
            actions.append(action)
            observations.append(self.observe(position, goal))
        return torch.stack(observations, 1), torch.stack(actions, 1)


def main(iterations=80):
    torch.manual_seed(0)
    trainer = NavTrainer(WorldModel())
    guide = GridGuide()
    for iteration in range(1, iterations + 1):
        observations, actions = guide.rollout()
        loss = trainer.train_step(observations, actions)
        if iteration % 20 == 0:
            print(
                f"iter {iteration} loss {loss:.4f} action {trainer.logs['action'][-1]:.4f} "
                f"observation {trainer.logs['observation'][-1]:.4f}"
            )
    return trainer


if __name__ == "__main__":
    main()
