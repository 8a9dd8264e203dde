"""A3C on a corridor; the workers take turns in one process."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F


def parse_args(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--gamma", type=float, default=0.97)
    parser.add_argument("--gae-lambda", type=float, default=1.0)
    parser.add_argument("--entropy-coef", type=float, default=0.01)
    parser.add_argument("--value-loss-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=50.0)
    parser.add_argument("--num-processes", type=int, default=3)
    parser.add_argument("--num-steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv if argv is not None else [])


class Corridor:
    size = 7

    def reset(self):
        self.position, self.left = self.size // 2, 20
        return self.observe()

    def observe(self):
        return F.one_hot(torch.tensor([self.position]), self.size).float()

    def step(self, action):
        self.position += 1 if action == 1 else -1
        self.left -= 1
        done = self.position in (0, self.size - 1) or self.left == 0
        reward = 1.0 if self.position == self.size - 1 else -0.05
        self.position = min(max(self.position, 0), self.size - 1)
        return self.observe(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.body = nn.Linear(observations, 32)
        self.critic_linear = nn.Linear(32, 1)
        self.actor_linear = nn.Linear(32, actions)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return self.critic_linear(x), self.actor_linear(x)


def ensure_shared_grads(model, shared_model):
    for param, shared_param in zip(model.parameters(), shared_model.parameters()):
        if shared_param.grad is not None:
            return
        shared_param._grad = param.grad


class Worker:
    def __init__(self, rank, args, shared_model, optimizer):
        self.args, self.shared_model, self.optimizer = args, shared_model, optimizer
        self.env = Corridor()
        self.model = ActorCritic(Corridor.size, 2)
        self.state = self.env.reset()
        self.norms, self.rewards = [], []

    def rollout(self):
        values, log_probs, rewards, entropies = [], [], [], []
        done = False
        for _ in range(self.args.num_steps):
            value, logit = self.model(self.state)
            log_prob = F.log_softmax(logit, dim=-1)
            prob = log_prob.exp()
            entropies.append(-(log_prob * prob).sum(1, keepdim=True))
            action = prob.multinomial(1).detach()
            self.state, reward, done = self.env.step(action.item())
            values.append(value)
            log_probs.append(log_prob.gather(1, action))
            rewards.append(reward)
            if done:
                self.state = self.env.reset()
                break
        R = torch.zeros(1, 1) if done else self.model(self.state)[0].detach()
        values.append(R)
        self.rewards.append(sum(rewards))
        return values, log_probs, rewards, entropies

    def train(self):
        args = self.args
        self.model.load_state_dict(self.shared_model.state_dict())
        values, log_probs, rewards, entropies = self.rollout()
        policy_loss = value_loss = 0.0
        R, gae = values[-1], torch.zeros(1, 1)
        for i in reversed(range(len(rewards))):
            R = args.gamma * R + rewards[i]
            value_loss = value_loss + 0.5 * (R - values[i]).pow(2)
            delta = rewards[i] + args.gamma * values[i + 1].detach() - values[i].detach()
            gae = gae * args.gamma * args.gae_lambda + delta
            policy_loss = policy_loss - log_probs[i] * gae - args.entropy_coef * entropies[i]
        loss = (policy_loss + args.value_loss_coef * value_loss).sum()

        self.optimizer.zero_grad()
        self.model.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), args.max_grad_norm)
        self.norms.append(norm.item())
        ensure_shared_grads(self.model, self.shared_model)
        self.optimizer.step()
        return loss.item()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    shared_model = ActorCritic(Corridor.size, 2)
    optimizer = torch.optim.Adam(shared_model.parameters(), lr=args.lr)
    workers = [Worker(rank, args, shared_model, optimizer) for rank in range(args.num_processes)]
    for round_ in range(args.rounds):
        losses = [worker.train() for worker in workers]
        if round_ % 15 == 0:
            print(f"round {round_} loss {sum(losses) / len(losses):.4f}")
    late = sum(sum(w.norms[-10:]) / 10 for w in workers) / len(workers)
    reward = sum(sum(w.rewards[-10:]) / 10 for w in workers) / len(workers)
    return {"late_grad_norm": late, "late_reward": reward}


if __name__ == "__main__":
    main()
