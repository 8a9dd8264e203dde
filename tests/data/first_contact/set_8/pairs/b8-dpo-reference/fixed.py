"""Preference optimisation of a small language model with a DPO style trainer."""
import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class DPOConfig:
    beta: float = 0.3
    learning_rate: float = 2e-3
    max_steps: int = 60
    batch_size: int = 16
    logging_steps: int = 15


class PolicyLM(nn.Module):
    def __init__(self, vocab_size=24, hidden=32, heads=2, max_length=16):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden)
        self.positions = nn.Embedding(max_length, hidden)
        layer = nn.TransformerEncoderLayer(hidden, heads, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.lm_head = nn.Linear(hidden, vocab_size)

    def forward(self, ids):
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(ids) + self.positions(torch.arange(length))
        return self.lm_head(self.encoder(hidden, mask=mask, is_causal=True))


def completion_logps(model, ids, prompt_length):
    logits = model(ids)[:, :-1]
    logps = F.log_softmax(logits, dim=-1).gather(2, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return logps[:, prompt_length - 1 :].sum(dim=1)


class PreferenceData:
    """Prompts of four tokens; chosen completions count upwards, rejected ones are shuffled."""

    def __init__(self, n=128, vocab_size=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        prompts = torch.randint(0, vocab_size, (n, 4), generator=g)
        steps = torch.arange(1, 7).unsqueeze(0)
        good = (prompts[:, -1:] + steps) % vocab_size
        noise = torch.randint(0, vocab_size, good.shape, generator=g)
        bad = torch.where(torch.rand(good.shape, generator=g) < 0.5, noise, good)
        self.chosen = torch.cat([prompts, good], 1)
        self.rejected = torch.cat([prompts, bad], 1)

    def batch(self, size, generator):
        index = torch.randint(0, len(self.chosen), (size,), generator=generator)
        return self.chosen[index], self.rejected[index]


class DPOTrainer:
    def __init__(self, model, config, data, ref_model=None):
        self.model = model
        self.config = config
        self.data = data
        if ref_model is None:
            ref_model = copy.deepcopy(model).requires_grad_(False)
        self.ref_model = ref_model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
        self.generator = torch.Generator().manual_seed(2)
        self.history = []

    def dpo_loss(self, chosen, rejected):
        policy_chosen = completion_logps(self.model, chosen, 4)
        policy_rejected = completion_logps(self.model, rejected, 4)
        with torch.no_grad():
            ref_chosen = completion_logps(self.ref_model, chosen, 4)
            ref_rejected = completion_logps(self.ref_model, rejected, 4)
        chosen_rewards = self.config.beta * (policy_chosen - ref_chosen)
        rejected_rewards = self.config.beta * (policy_rejected - ref_rejected)
        loss = -F.logsigmoid(chosen_rewards - rejected_rewards).mean()
        metrics = {
            "rewards/chosen": chosen_rewards.mean().item(),
            "rewards/rejected": rejected_rewards.mean().item(),
            "logps/chosen": policy_chosen.mean().item(),
        }
        return loss, metrics

    def train(self):
        self.model.train()
        for step in range(1, self.config.max_steps + 1):
            chosen, rejected = self.data.batch(self.config.batch_size, self.generator)
            loss, metrics = self.dpo_loss(chosen, rejected)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            metrics["loss"] = loss.item()
            self.history.append(metrics)
            if step % self.config.logging_steps == 0:
                print({"step": step, **{k: round(v, 4) for k, v in metrics.items()}})


def supervised_warmup(model, data, steps=40):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        chosen, rejected = data.batch(32, generator)
        ids = torch.cat([chosen, rejected])
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    torch.manual_seed(4)
    data = PreferenceData()
    model = PolicyLM()
    supervised_warmup(model, data)
    start = copy.deepcopy(model.state_dict())
    trainer = DPOTrainer(model, DPOConfig(), data)
    trainer.train()
    moved = sum((model.state_dict()[k] - v).norm().item() for k, v in start.items())
    print(f"distance from the supervised model {moved:.3f}")
    return trainer


if __name__ == "__main__":
    main()
