import threading

import torch
import torch.nn as nn
import torch.nn.functional as F


class ActorCritic(nn.Module):
    def __init__(self, obs=4, actions=2, hidden=32):
        super().__init__()
        self.fc = nn.Linear(obs, hidden)
        self.lstm = nn.LSTMCell(hidden, hidden)
        self.critic, self.actor = nn.Linear(hidden, 1), nn.Linear(hidden, actions)

    def forward(self, x, hidden):
        h, c = self.lstm(F.elu(self.fc(x)), hidden)
        return self.critic(h), self.actor(h), (h, c)


class Repeat:
    """The action has to equal the sign of the observation's first number two steps ago."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.queue = [0, 0]
        self.obs = torch.randn(1, 4, generator=self.g)

    def step(self, action):
        reward = 1.0 if action == self.queue.pop(0) else 0.0
        self.queue.append(int(self.obs[0, 0] > 0))
        self.obs = torch.randn(1, 4, generator=self.g)
        return self.obs, reward


def ensure_shared_grads(model, shared_model):
    for param, shared_param in zip(model.parameters(), shared_model.parameters()):
        shared_param.grad = param.grad.clone()


def worker(rank, shared_model, optimizer, lock, log, updates=30, num_steps=10, gamma=0.5, tau=0.9):
    env, model = Repeat(rank), ActorCritic()
    hidden = (torch.zeros(1, 32), torch.zeros(1, 32))
    obs = env.obs
    for _ in range(updates):
        with lock:
            model.load_state_dict(shared_model.state_dict())
        hidden = tuple(h.detach() for h in hidden)
        values, log_probs, rewards, entropies = [], [], [], []
        for _ in range(num_steps):
            value, logit, hidden = model(obs, hidden)
            prob, log_prob = F.softmax(logit, dim=-1), F.log_softmax(logit, dim=-1)
            action = prob.multinomial(num_samples=1).detach()
            entropies.append(-(log_prob * prob).sum(1, keepdim=True))
            log_probs.append(log_prob.gather(1, action))
            obs, reward = env.step(action.item())
            values.append(value), rewards.append(reward)
        with torch.no_grad():
            R = model(obs, hidden)[0]
        values.append(R)
        policy_loss, value_loss, gae = 0.0, 0.0, torch.zeros(1, 1)
        for i in reversed(range(num_steps)):
            R = gamma * R + rewards[i]
            advantage = R - values[i]
            value_loss = value_loss + 0.5 * advantage.pow(2)
            delta = rewards[i] + gamma * values[i + 1].detach() - values[i].detach()
            gae = gae * gamma * tau + delta
            policy_loss = policy_loss - log_probs[i] * gae - 0.01 * entropies[i]
        model.zero_grad()
        (policy_loss + 0.5 * value_loss).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 40.0)
        with lock:
            ensure_shared_grads(model, shared_model)
            optimizer.step()
        log.append(sum(rewards) / num_steps)


def main():
    torch.manual_seed(3)
    shared_model = ActorCritic()
    shared_model.share_memory()
    optimizer = torch.optim.Adam(shared_model.parameters(), lr=2e-3)
    log, lock = [], threading.Lock()
    for rank in range(2):
        thread = threading.Thread(target=worker, args=(rank, shared_model, optimizer, lock, log))
        thread.start()
        thread.join()
        print(f"worker {rank}  mean reward {sum(log[-20:]) / 20:.3f}")
    return {"mean_reward": sum(log) / len(log)}


if __name__ == "__main__":
    main()
