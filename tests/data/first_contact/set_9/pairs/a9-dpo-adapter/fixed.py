from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


@dataclass
class DPOConfig:
    beta: float = 0.5
    learning_rate: float = 3e-3
    steps: int = 40
    batch_size: int = 12
    lora_r: int = 4
    lora_alpha: int = 8
    target_modules: tuple = ("qkv", "fc1")
    modules_to_save: tuple = ("lm_head",)
    logs: list = field(default_factory=list)


class TinyLM(nn.Module):
    def __init__(self, vocab=32, d=32, length=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(length, d) * 0.02)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d) for _ in range(3))
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.fc1 = nn.Linear(d, 2 * d)
        self.fc2 = nn.Linear(2 * d, d)
        self.lm_head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.pos[: ids.shape[1]]
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return self.lm_head(self.norm3(x))


class LoraLayer(nn.Module):
    def __init__(self, base, r, alpha):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(r, base.in_features) * 0.1)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_a.t() @ self.lora_b.t())


def get_peft_model(model, cfg):
    model.requires_grad_(False)
    for name in cfg.target_modules:
        setattr(model, name, LoraLayer(getattr(model, name), cfg.lora_r, cfg.lora_alpha))
    for name in cfg.modules_to_save:
        getattr(model, name).requires_grad_(True)
    return model


@contextmanager
def null_ref_context(model):
    layers = [m for m in model.modules() if isinstance(m, LoraLayer)]
    saved = [m.scale for m in layers]
    try:
        for m in layers:
            m.scale = 0.0
        yield model
    finally:
        for m, s in zip(layers, saved):
            m.scale = s


def sequence_logps(logits, ids, prompt_len):
    logp = torch.log_softmax(logits[:, :-1], dim=-1)
    picked = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return picked[:, prompt_len - 1 :].sum(-1)


class DPOTrainer:
    def __init__(self, model, cfg, prompt_len):
        self.model = model
        self.cfg = cfg
        self.prompt_len = prompt_len
        self.initial = {
            n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad and "lora_" not in n
        }
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=cfg.learning_rate, weight_decay=0.0)

    def policy_logps(self, ids):
        return sequence_logps(self.model(ids), ids, self.prompt_len)

    @torch.no_grad()
    def reference_logps(self, ids):
        with null_ref_context(self.model):
            logits = functional_call(self.model, self.initial, (ids,))
        return sequence_logps(logits, ids, self.prompt_len)

    def loss(self, chosen, rejected):
        n = len(chosen)
        ids = torch.cat([chosen, rejected])
        ref = self.reference_logps(ids)
        ratio = self.policy_logps(ids) - ref
        margin = self.cfg.beta * (ratio[:n] - ratio[n:])
        return -F.logsigmoid(margin).mean(), margin.detach().mean()

    def train(self, sampler):
        for step in range(1, self.cfg.steps + 1):
            loss, margin = self.loss(*sampler(self.cfg.batch_size))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([p for g in self.optimizer.param_groups for p in g["params"]], 1.0)
            self.optimizer.step()
            self.cfg.logs.append((loss.item(), margin.item()))
            if step % 10 == 0:
                print(step, round(loss.item(), 4), round(margin.item(), 3))


def pretrain(model, steps, vocab):
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(steps):
        start = torch.randint(0, vocab, (24, 1))
        stride = torch.randint(1, 4, (24, 1))
        seq = (start + stride * torch.arange(13)) % vocab
        loss = F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def preference_pairs(vocab, prompt_len, length):
    def sample(n):
        start = torch.randint(0, vocab, (n, 1))
        ramp = torch.arange(length)
        chosen = (start + ramp) % vocab
        rejected = (start + ramp + (ramp >= prompt_len) * torch.randint(1, 4, (n, 1))) % vocab
        return chosen, rejected

    return sample


def main():
    torch.manual_seed(5)
    vocab, prompt_len, length = 32, 5, 12
    model = TinyLM(vocab)
    print("sft", round(pretrain(model, 45, vocab), 3))
    cfg = DPOConfig()
    trainer = DPOTrainer(get_peft_model(model, cfg), cfg, prompt_len)
    trainer.train(preference_pairs(vocab, prompt_len, length))


if __name__ == "__main__":
    main()
