"""PPO fine-tuning of a tiny language model against a reward function."""
import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class PPOConfig:
    vocab: int = 12
    hidden: int = 32
    dropout: float = 0.1
    query_len: int = 3
    response_len: int = 6
    batch_size: int = 48
    mini_batch_size: int = 16
    ppo_epochs: int = 3
    steps: int = 14
    lr: float = 3e-3
    init_kl_coef: float = 0.05
    cliprange: float = 0.2
    vf_coef: float = 0.1
    seed: int = 13


class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(cfg.hidden), nn.LayerNorm(cfg.hidden)
        self.attention = nn.MultiheadAttention(cfg.hidden, 2, dropout=cfg.dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.hidden, 2 * cfg.hidden), nn.GELU(), nn.Linear(2 * cfg.hidden, cfg.hidden)
        )
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x):
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), diagonal=1)
        h = self.norm1(x)
        h, _ = self.attention(h, h, h, attn_mask=mask, need_weights=False)
        x = x + self.dropout(h)
        return x + self.dropout(self.mlp(self.norm2(x)))


class CausalLMWithValueHead(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = nn.Embedding(cfg.vocab, cfg.hidden)
        self.positions = nn.Embedding(cfg.query_len + cfg.response_len, cfg.hidden)
        self.dropout = nn.Dropout(cfg.dropout)
        self.block = TransformerBlock(cfg)
        self.lm_head = nn.Linear(cfg.hidden, cfg.vocab, bias=False)
        self.v_head = nn.Linear(cfg.hidden, 1)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        h = self.block(self.dropout(x))
        return self.lm_head(h), self.v_head(h).squeeze(-1)


def logprobs_from_logits(logits, labels):
    return F.log_softmax(logits, dim=-1).gather(2, labels.unsqueeze(-1)).squeeze(-1)


def create_reference_model(model):
    return copy.deepcopy(model).requires_grad_(False).eval()


class PPOTrainer:
    def __init__(self, cfg, model):
        self.cfg = cfg
        self.model = model
        self.ref_model = create_reference_model(model)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        self.deviations = []

    @torch.no_grad()
    def generate(self, query):
        self.model.eval()
        ids = query
        for _ in range(self.cfg.response_len):
            logits, _ = self.model(ids)
            ids = torch.cat([ids, torch.distributions.Categorical(logits=logits[:, -1]).sample()[:, None]], 1)
        return ids

    def evaluate(self, model, ids):
        logits, values = model(ids[:, :-1])
        start = self.cfg.query_len - 1
        return logprobs_from_logits(logits, ids[:, 1:])[:, start:], values[:, start:]

    @torch.no_grad()
    def make_experience(self, query):
        ids = self.generate(query)
        logprobs, values = self.evaluate(self.model, ids)
        ref_logprobs, _ = self.evaluate(self.ref_model, ids)
        score = (ids[:, self.cfg.query_len:] % 2 == 0).float().mean(dim=1)
        rewards = -self.cfg.init_kl_coef * (logprobs - ref_logprobs)
        rewards[:, -1] += score
        returns = rewards.flip(1).cumsum(1).flip(1)
        advantages = returns - values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return (ids, logprobs, advantages, returns), score.mean().item()

    def step(self, query):
        experience, score = self.make_experience(query)
        self.model.train()
        deviations = []
        for _ in range(self.cfg.ppo_epochs):
            for index in torch.randperm(len(query)).split(self.cfg.mini_batch_size):
                ids, old_logprobs, advantages, returns = (column[index] for column in experience)
                logprobs, values = self.evaluate(self.model, ids)
                ratio = torch.exp(logprobs - old_logprobs)
                clipped = ratio.clamp(1 - self.cfg.cliprange, 1 + self.cfg.cliprange)
                pg_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
                loss = pg_loss + self.cfg.vf_coef * F.mse_loss(values, returns)
                deviations.append((ratio - 1).abs().mean().item())
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
        self.deviations.append(deviations[0])
        return loss.item(), score


def main():
    cfg = PPOConfig()
    torch.manual_seed(cfg.seed)
    model = CausalLMWithValueHead(cfg)
    trainer = PPOTrainer(cfg, model)
    for step in range(cfg.steps):
        loss, score = trainer.step(torch.randint(cfg.vocab, (cfg.batch_size, cfg.query_len)))
        if step % 4 == 0:
            print(f"step {step} loss {loss:.4f} score {score:.3f}")
    return {"first_ratio_deviation": sum(trainer.deviations) / len(trainer.deviations), "score": score}


if __name__ == "__main__":
    main()
