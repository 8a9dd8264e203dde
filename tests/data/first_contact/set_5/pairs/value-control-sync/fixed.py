import torch
import torch.nn as nn
import torch.optim as optim


class DuelingDQN(nn.Module):
    def __init__(self, n_states, n_actions, hidden=48):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(n_states, hidden), nn.ReLU())
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, n_actions)

    def forward(self, x):
        h = self.feature(x)
        adv = self.advantage(h)
        return self.value(h) + adv - adv.mean(dim=1, keepdim=True)


class CentralControl:
    def __init__(self, n_states, n_actions, gamma, n_multi_step, device="cpu"):
        self.target_nn = DuelingDQN(n_states, n_actions).to(device)
        self.moving_nn = DuelingDQN(n_states, n_actions).to(device)
        self.target_nn.load_state_dict(self.moving_nn.state_dict())
        self.gamma, self.n_multi_step = gamma, n_multi_step
        self.optimizer = None

    def set_optimizer(self, learning_rate):
        self.optimizer = optim.Adam(self.moving_nn.parameters(), lr=learning_rate)

    def optimize(self, mini_batch):
        loss = self._calculate_loss(mini_batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def update_target(self, iteration, every):
        if iteration % every == 0:
            self.target_nn.load_state_dict(self.moving_nn.state_dict())

    def _calculate_loss(self, mini_batch):
        states, actions, rewards, next_states, done = mini_batch
        q = self.moving_nn(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            next_q = self.target_nn(next_states).max(dim=1).values
        expected = rewards + (self.gamma**self.n_multi_step) * next_q * (1 - done)
        return nn.functional.mse_loss(q, expected)


class Chain:
    """A walk on seven cells; reaching the right end pays one."""

    def __init__(self, n=7):
        self.n = n

    def transitions(self, size):
        s = torch.randint(0, self.n - 1, (size,))
        a = torch.randint(0, 2, (size,))
        s2 = (s + 2 * a - 1).clamp(min=0)
        done = (s2 == self.n - 1).float()
        eye = torch.eye(self.n)
        return eye[s], a, done.clone(), eye[s2], done


def main(iterations=200, sync_every=50):
    torch.manual_seed(17)
    env = Chain()
    agent = CentralControl(env.n, 2, gamma=0.95, n_multi_step=1)
    agent.set_optimizer(1e-3)
    lag = []
    for it in range(1, iterations + 1):
        loss = agent.optimize(env.transitions(64))
        agent.update_target(it, sync_every)
        pairs = zip(agent.moving_nn.parameters(), agent.target_nn.parameters())
        lag.append(sum((a - b).abs().sum().item() for a, b in pairs))
    print(f"loss {loss:.5f}, distance to the target at the end of a period {max(lag[-sync_every:]):.4f}")
    return {"agent": agent, "lag": lag}

if __name__ == "__main__":
    main()
