"""A one-block character model whose feed-forward part is a mixture of experts."""
import math

import torch
from torch import nn
import torch.nn.functional as F

TEXT = "the quick brown fox jumps over the lazy dog and the dog naps while the fox runs away. " * 12


class AttachScalar(torch.autograd.Function):
    """Carries `extra` along with `x`: the value of x is unchanged, extra gets a gradient of `scale`."""

    scale = 1.0

    @staticmethod
    def forward(ctx, x, extra):
        ctx.save_for_backward(extra)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        (extra,) = ctx.saved_tensors
        return grad_output, torch.ones_like(extra) * AttachScalar.scale


class Gate(nn.Module):
    def __init__(self, dim, n_experts, top_k, coeff):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_experts, dim) / math.sqrt(dim))
        self.n_experts, self.top_k, self.coeff = n_experts, top_k, coeff

    def forward(self, x):
        scores = F.linear(x, self.weight).softmax(-1)
        weights, indices = scores.topk(self.top_k, dim=-1)
        if self.training and self.coeff > 0:
            balance = self.balance_loss(scores, indices)
            AttachScalar.apply(weights, self.coeff * balance)
        return weights, indices

    def balance_loss(self, scores, indices):
        load = F.one_hot(indices, self.n_experts).float().sum(1).mean(0) / self.top_k
        importance = scores.mean(0)
        return self.n_experts * (load * importance).sum()


class MoE(nn.Module):
    def __init__(self, dim, n_experts=4, top_k=1, coeff=0.5):
        super().__init__()
        self.gate = Gate(dim, n_experts, top_k, coeff)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim)) for _ in range(n_experts)
        )

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, indices = self.gate(flat)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(indices == e)
            if token.numel():
                out = out.index_add(0, token, expert(flat[token]) * weights[token, slot].unsqueeze(1))
        return out.view_as(x)


class CharLM(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.moe = MoE(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.head(h + self.moe(self.norm(h)))


def expert_share(model, ids):
    model.eval()
    with torch.no_grad():
        h, _ = model.rnn(model.embed(ids))
        _, idx = model.moe.gate(model.norm(h).reshape(-1, h.shape[-1]))
    model.train()
    return torch.bincount(idx.flatten(), minlength=4).float() / idx.numel()


def main():
    torch.manual_seed(1)
    chars = sorted(set(TEXT))
    ids = torch.tensor([chars.index(c) for c in TEXT])
    window = ids[: len(ids) // 33 * 33].view(-1, 33)
    model = CharLM(len(chars))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(60):
        batch = window[torch.randint(len(window), (8,))]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d} loss {loss.item():.3f}")
    share = expert_share(model, window[:, :-1])
    print("share of tokens for each expert:", [round(v, 3) for v in share.tolist()])
    return model, share


if __name__ == "__main__":
    main()
