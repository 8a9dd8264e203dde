"""Direct preference optimisation of a small language model."""
import copy
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class DPOConfig:
    beta: float = 0.3
    learning_rate: float = 2e-3
    per_device_train_batch_size: int = 24
    gradient_accumulation_steps: int = 2
    max_steps: int = 40
    max_grad_norm: float = 1.0
    logging_steps: int = 10
    label_smoothing: float = 0.0


class TinyLM(nn.Module):
    def __init__(self, vocab=14, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.lm_head = nn.Linear(hidden, vocab)

    def forward(self, input_ids):
        hidden, _ = self.rnn(self.embed(input_ids))
        return self.lm_head(hidden)


class PreferenceData:
    """The chosen answer repeats tokens of the prompt, the rejected one is random."""

    prompt_len, answer_len, vocab = 4, 5, 14

    def sample(self, n):
        prompt = torch.randint(self.vocab, (n, self.prompt_len))
        chosen = prompt.gather(1, torch.randint(self.prompt_len, (n, self.answer_len)))
        rejected = torch.randint(self.vocab, (n, self.answer_len))
        return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


class DPOTrainer:
    def __init__(self, model: nn.Module, ref_model: Optional[nn.Module], args: DPOConfig, data: PreferenceData):
        self.args, self.data = args, data
        self.model = model
        self.ref_model = ref_model if ref_model is not None else copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, args.max_steps)
        self.log_history = []

    def get_batch_logps(self, model, prompt, answer):
        ids = torch.cat([prompt, answer], dim=1)
        logps = F.log_softmax(model(ids[:, :-1]), dim=-1)
        picked = logps.gather(2, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        return picked[:, prompt.shape[1] - 1:].sum(-1)

    def concatenated_forward(self, model, batch):
        prompt = torch.cat([batch["prompt"], batch["prompt"]])
        logps = self.get_batch_logps(model, prompt, torch.cat([batch["chosen"], batch["rejected"]]))
        return logps.chunk(2)

    def dpo_loss(self, policy_chosen, policy_rejected, ref_chosen, ref_rejected):
        logits = (policy_chosen - policy_rejected) - (ref_chosen - ref_rejected)
        smoothing = self.args.label_smoothing
        losses = (
            -F.logsigmoid(self.args.beta * logits) * (1 - smoothing)
            - F.logsigmoid(-self.args.beta * logits) * smoothing
        )
        chosen_rewards = self.args.beta * (policy_chosen - ref_chosen).detach()
        rejected_rewards = self.args.beta * (policy_rejected - ref_rejected).detach()
        return losses.mean(), chosen_rewards, rejected_rewards

    def compute_loss(self, batch):
        policy_chosen, policy_rejected = self.concatenated_forward(self.model, batch)
        with torch.no_grad():
            ref_chosen, ref_rejected = self.concatenated_forward(self.ref_model, batch)
        loss, chosen, rejected = self.dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
        return loss, (chosen - rejected).mean().item()

    def train(self):
        self.model.train()
        accumulation = self.args.gradient_accumulation_steps
        for step in range(self.args.max_steps):
            logs = {"loss": 0.0, "margin": 0.0}
            for _ in range(accumulation):
                loss, margin = self.compute_loss(self.data.sample(self.args.per_device_train_batch_size))
                (loss / accumulation).backward()
                logs["loss"] += loss.item() / accumulation
                logs["margin"] += margin / accumulation
            nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.log_history.append(logs)
            if step % self.args.logging_steps == 0:
                print(f"step {step} " + " ".join(f"{k} {v:.4f}" for k, v in logs.items()))
        return logs

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        chosen, rejected = self.concatenated_forward(self.model, self.data.sample(400))
        return (chosen > rejected).float().mean().item()


def pretrain(model, data, steps=40):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        batch = data.sample(32)
        ids = torch.cat([batch["prompt"], batch["chosen"]], dim=1)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def main():
    torch.manual_seed(23)
    data = PreferenceData()
    model = pretrain(TinyLM(), data)
    trainer = DPOTrainer(model, None, DPOConfig(), data)
    logs = trainer.train()
    return {"loss": logs["loss"], "margin": logs["margin"], "accuracy": trainer.accuracy()}


if __name__ == "__main__":
    main()
