import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


@dataclass
class GRPOConfig:
    n_prompts: int = 8
    group: int = 8
    horizon: int = 5
    vocab: int = 7
    beta: float = 0.02
    lr: float = 5e-3
    updates: int = 80
    max_grad_norm: float = 1.0


class Policy(nn.Module):
    def __init__(self, vocab, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(vocab + 1, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.head(h)


class GRPOTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.policy = Policy(cfg.vocab)
        self.reference = copy.deepcopy(self.policy).eval()
        for p in self.reference.parameters():
            p.requires_grad = False
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=cfg.lr)

    @torch.no_grad()
    def generate(self, prompts):
        seq = prompts.unsqueeze(1)
        for _ in range(self.cfg.horizon):
            logits = self.policy(seq)[:, -1]
            seq = torch.cat([seq, Categorical(logits=logits).sample().unsqueeze(1)], 1)
        return seq

    def reward(self, seq):
        first = seq[:, 0] % self.cfg.vocab
        wanted = (first.unsqueeze(1) + torch.arange(1, self.cfg.horizon + 1)) % self.cfg.vocab
        return (seq[:, 1:] == wanted).float().mean(1)

    def logps(self, model, seq):
        logp = F.log_softmax(model(seq[:, :-1]), -1)
        return logp.gather(2, seq[:, 1:].unsqueeze(2)).squeeze(2)

    def step(self):
        cfg = self.cfg
        prompts = torch.randint(0, cfg.vocab, (cfg.n_prompts,)).repeat_interleave(cfg.group)
        seq = self.generate(prompts)
        rewards = self.reward(seq)
        grouped = rewards.view(cfg.n_prompts, cfg.group)
        advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        advantages = advantages.view(-1, 1)

        logp = self.logps(self.policy, seq)
        with torch.no_grad():
            ref_logp = self.logps(self.reference, seq)
        kl = torch.exp(ref_logp - logp) - (ref_logp - logp) - 1
        per_token = torch.exp(logp - logp.detach()) * advantages
        loss = -(per_token - cfg.beta * kl).mean()

        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), cfg.max_grad_norm)
        self.optimizer.step()
        return {"loss": loss.item(), "reward": rewards.mean().item(), "kl": kl.mean().item()}

    def train(self):
        for update in range(1, self.cfg.updates + 1):
            metrics = self.step()
            if update % 20 == 0:
                print(update, " ".join(f"{k} {v:.4f}" for k, v in metrics.items()))


def main():
    torch.manual_seed(0)
    GRPOTrainer(GRPOConfig()).train()


if __name__ == "__main__":
    main()
