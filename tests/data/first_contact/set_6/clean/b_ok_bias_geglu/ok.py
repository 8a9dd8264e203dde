"""Language model block with a fused bias + GeGLU activation."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def _gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _gelu_grad(x):
    cdf = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    pdf = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return cdf + x * pdf


class BiasGeGLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, dropped):
        gate, up = (x + bias).chunk(2, dim=-1)
        out = _gelu(gate) * up
        out[dropped] = 0
        ctx.save_for_backward(x, bias, dropped)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, bias, dropped = ctx.saved_tensors
        gate, up = (x + bias).chunk(2, dim=-1)
        grad_output = grad_output.clone()
        grad_output[dropped] = 0
        grad_gate = grad_output * up * _gelu_grad(gate)
        grad_up = grad_output * _gelu(gate)
        grad_x = torch.cat([grad_gate, grad_up], dim=-1)
        return grad_x, grad_x, None


class FeedForward(nn.Module):
    def __init__(self, dim, hidden, p_drop_token=0.1):
        super().__init__()
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.up_bias = nn.Parameter(torch.zeros(2 * hidden))
        self.down = nn.Linear(hidden, dim)
        self.p_drop_token = p_drop_token

    def forward(self, x):
        lead = x.shape[:-1]
        h = self.up(x.reshape(-1, x.shape[-1]))
        if self.training:
            dropped = torch.rand(h.shape[0]) < self.p_drop_token
        else:
            dropped = torch.zeros(h.shape[0], dtype=torch.bool)
        h = BiasGeGLUFunction.apply(h, self.up_bias, dropped)
        return self.down(h).view(*lead, -1)


class TinyLM(nn.Module):
    def __init__(self, vocab=32, dim=32, context=4):
        super().__init__()
        self.context = context
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Conv1d(dim, dim, context)
        self.norm = nn.LayerNorm(dim)
        self.ff = FeedForward(dim, 48)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        padded = F.pad(x.transpose(1, 2), (self.context - 1, 0))
        x = x + self.mix(padded).transpose(1, 2)
        x = x + self.ff(self.norm(x))
        return self.lm_head(x)


def sample_tokens(batch, length, vocab, generator):
    start = torch.randint(0, vocab, (batch, 1), generator=generator)
    stride = torch.randint(1, 4, (batch, 1), generator=generator)
    return (start + stride * torch.arange(length)) % vocab


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = TinyLM()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=4e-3)
    for step in range(100):
        tokens = sample_tokens(32, 17, 32, g)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        tokens = sample_tokens(64, 17, 32, g)
        acc = (model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:])[:, 2:].float().mean()
    print(f"next token accuracy {acc.item():.3f}")
    return model


if __name__ == "__main__":
    main()
