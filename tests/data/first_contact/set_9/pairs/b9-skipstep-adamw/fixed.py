from dataclasses import dataclass, field
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer


class SkipStepOptimizer(Optimizer):
    def __init__(self, params, defaults, rolling_interval_length=32, sigma_factor=6):
        super().__init__(params, defaults)
        self.rolling_interval_length = rolling_interval_length
        self.sigma_factor = sigma_factor
        self._losses: List[torch.Tensor] = []

    @property
    def latest_loss(self) -> Optional[torch.Tensor]:
        return self._losses[-1] if self._losses else None

    @latest_loss.setter
    def latest_loss(self, loss: torch.Tensor):
        self._losses.append(loss.detach())
        while len(self._losses) > self.rolling_interval_length + 1:
            self._losses.pop(0)

    @torch.no_grad()
    def get_step_factor(self) -> torch.Tensor:
        if len(self._losses) < max(2, self.rolling_interval_length // 2):
            return torch.tensor(1.0)
        history = torch.stack(self._losses[:-1])
        std, mean = torch.std_mean(history)
        keep = (self._losses[-1] - mean) <= self.sigma_factor * std
        return keep.float()


def adamw_step(
    p: nn.Parameter,
    *,
    lr: float,
    betas: Tuple[float, float],
    eps: float,
    weight_decay: float,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: torch.Tensor,
    step_factor: torch.Tensor,
):
    beta1, beta2 = betas
    p.mul_(1 - step_factor * (lr * weight_decay))

    exp_avg.lerp_(p.grad, step_factor * (1 - beta1))
    exp_avg_sq.mul_(1 - step_factor * (1 - beta2))
    exp_avg_sq.add_(step_factor * p.grad * p.grad, alpha=1 - beta2)

    step.add_(step_factor)
    bias_correction1 = 1 - beta1**step.clamp(min=1)
    bias_correction2 = 1 - beta2**step.clamp(min=1)

    denom = (exp_avg_sq / bias_correction2).sqrt_().add_(eps)
    p.add_(step_factor * exp_avg / denom * (-lr / bias_correction1))


class SkipStepAdamW(SkipStepOptimizer):
    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=1e-2, **kwargs
    ):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, defaults, **kwargs)

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        step_factor = self.get_step_factor()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                adamw_step(
                    p,
                    lr=group["lr"],
                    betas=group["betas"],
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                    exp_avg=state["exp_avg"],
                    exp_avg_sq=state["exp_avg_sq"],
                    step=state["step"],
                    step_factor=step_factor,
                )


@dataclass
class SkipStepAdamWConfig:
    lr: float = 2e-3
    weight_decay: float = 0.1
    rolling_interval_length: int = 32
    no_decay: List[str] = field(default_factory=lambda: ["bias", "norm", "embed"])

    def build(self, model: nn.Module) -> SkipStepAdamW:
        decay, no_decay = [], []
        for name, p in model.named_parameters():
            (no_decay if any(k in name for k in self.no_decay) else decay).append(p)
        groups = [
            {"params": decay, "weight_decay": self.weight_decay},
            {"params": no_decay, "weight_decay": 0.0},
        ]
        return SkipStepAdamW(
            groups, lr=self.lr, rolling_interval_length=self.rolling_interval_length
        )


class TinyLM(nn.Module):
    def __init__(self, vocab=24, d_model=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.rnn = nn.GRU(d_model, d_model, batch_first=True)
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab)

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.head(self.norm(h))


def sample_tokens(table, batch, length):
    tokens = [torch.randint(table.shape[0], (batch,))]
    for _ in range(length):
        tokens.append(torch.multinomial(table[tokens[-1]], 1).squeeze(1))
    return torch.stack(tokens, dim=1)


def main():
    torch.manual_seed(0)
    table = torch.softmax(2.5 * torch.randn(24, 24), dim=-1)
    model = TinyLM()
    optim = SkipStepAdamWConfig().build(model)
    for step in range(121):
        batch = sample_tokens(table, batch=16, length=16)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.latest_loss = loss
        optim.step()
        if step % 40 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
