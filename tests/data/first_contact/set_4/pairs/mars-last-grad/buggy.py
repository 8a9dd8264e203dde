"""Language-model-like training with MARS: AdamW on a variance-reduced gradient."""
import math
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F
from torch.optim import Optimizer


@dataclass
class Config:
    vocab: int = 20
    dim: int = 24
    context: int = 6
    steps: int = 120
    micro_batches: int = 2
    micro_size: int = 16
    lr: float = 4e-3
    warmup: int = 10
    ema_decay: float = 0.98
    seed: int = 6


class Mars(Optimizer):
    def __init__(self, params, lr=3e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, gamma=0.05):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, gamma=gamma))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                    state["last_grad"] = torch.zeros_like(p)
                    state["correction"] = 0.0
                state["step"] += 1
                correction = (grad - state["last_grad"]) * (group["gamma"] * beta1 / (1 - beta1))
                state["correction"] = correction.norm().item()
                c_t = grad + correction
                norm = c_t.norm()
                if norm > 1.0:
                    c_t = c_t / norm
                state["exp_avg"].mul_(beta1).add_(c_t, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(c_t, c_t, value=1 - beta2)
                bias1 = 1 - beta1 ** state["step"]
                bias2 = 1 - beta2 ** state["step"]
                denom = (state["exp_avg_sq"] / bias2).sqrt_().add_(group["eps"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(state["exp_avg"] / bias1, denom, value=-group["lr"])
                state["last_grad"] = grad
        return loss


class TinyLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.mix = nn.Linear(cfg.context * cfg.dim, 2 * cfg.dim)
        self.out = nn.Linear(2 * cfg.dim, cfg.vocab)

    def forward(self, tokens):
        return self.out(F.gelu(self.mix(self.embed(tokens).flatten(1))))


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


def sample(cfg, generator, n):
    tokens = torch.randint(0, cfg.vocab, (n, cfg.context), generator=generator)
    return tokens, (tokens[:, 0] + 2 * tokens[:, -1]) % cfg.vocab


def lr_at(step, cfg):
    if step < cfg.warmup:
        return (step + 1) / cfg.warmup
    return 0.5 * (1 + math.cos(math.pi * (step - cfg.warmup) / (cfg.steps - cfg.warmup)))


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    model = TinyLM(cfg)
    ema = Ema(model, cfg.ema_decay)
    optimizer = Mars(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: lr_at(s, cfg))
    corrections = []
    for step in range(cfg.steps):
        optimizer.zero_grad(set_to_none=False)
        total = 0.0
        for _ in range(cfg.micro_batches):
            tokens, target = sample(cfg, generator, cfg.micro_size)
            loss = F.cross_entropy(model(tokens), target) / cfg.micro_batches
            loss.backward()
            total += loss.item()
        optimizer.step()
        scheduler.step()
        ema.update(model)
        corrections.append(sum(s["correction"] for s in optimizer.state.values()))
        if step % 40 == 0:
            print(f"step {step} loss {total:.4f}")
    model.load_state_dict(ema.shadow)
    model.eval()
    with torch.no_grad():
        tokens, target = sample(cfg, generator, 512)
        test = F.cross_entropy(model(tokens), target).item()
    print(f"test {test:.4f}")
    return {"loss": total, "test": test, "corrections_after_first": sum(corrections[1:])}


if __name__ == "__main__":
    main()
