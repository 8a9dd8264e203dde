import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def rmsnorm_fwd(x, weight, eps):
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * rstd * weight, rstd


def rmsnorm_bwd(x, weight, rstd, dout):
    x_hat = x * rstd
    wdy = dout * weight
    dx = rstd * (wdy - x_hat * (x_hat * wdy).mean(-1, keepdim=True))
    dw = (dout * x_hat).reshape(-1, x.shape[-1]).sum(0)
    return dx, dw


class RMSPreNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        residual_out = x + residual
        out, rstd = rmsnorm_fwd(residual_out, weight, eps)
        ctx.save_for_backward(residual_out, weight, rstd)
        return out, residual_out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dresidual_out):
        residual_out, weight, rstd = ctx.saved_tensors
        dx, dw = rmsnorm_bwd(residual_out, weight, rstd, dout)
        dx = dx + dresidual_out
        return dx, dx, dw, None


def rms_prenorm(x, residual, weight, eps=1e-6):
    return RMSPreNormFunction.apply(x, residual, weight, eps)


class PreNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, residual):
        return rms_prenorm(x, residual, self.weight, self.eps)


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class SwiGLU(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate_up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = PreNorm(dim)
        self.attn = CausalSelfAttention(dim, heads)
        self.norm2 = PreNorm(dim)
        self.mlp = SwiGLU(dim)

    def forward(self, hidden, residual):
        hidden, residual = self.norm1(hidden, residual)
        hidden = self.attn(hidden)
        hidden, residual = self.norm2(hidden, residual)
        return self.mlp(hidden), residual


class FusedLM(nn.Module):
    def __init__(self, vocab, dim=32, heads=4, depth=3, block_size=32):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Parameter(0.02 * torch.randn(block_size, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm_f = PreNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        hidden = self.wte(idx) + self.wpe[: idx.size(1)]
        residual = torch.zeros_like(hidden)
        for block in self.blocks:
            hidden, residual = block(hidden, residual)
        hidden, _ = self.norm_f(hidden, residual)
        return self.head(hidden)


def get_batch(batch_size, block_size, vocab, generator):
    head = torch.randint(0, vocab, (batch_size, block_size // 2), generator=generator)
    seq = torch.cat([head, head], 1)
    return seq[:, :-1], seq[:, 1:]


def target(x, residual, weight):
    return rms_prenorm(x, residual, weight)


def make_inputs():
    gen = torch.Generator().manual_seed(9)
    shapes = ((2, 3, 4), (2, 3, 4), (4,))
    return tuple(torch.randn(s, generator=gen, dtype=torch.float64).requires_grad_() for s in shapes)


def main():
    torch.manual_seed(13)
    gen = torch.Generator().manual_seed(14)
    vocab, block_size = 16, 16
    model = FusedLM(vocab)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.01)
    for it in range(1, 76):
        x, y = get_batch(32, block_size, vocab, gen)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if it % 25 == 0:
            copied = F.cross_entropy(logits[:, block_size // 2 :].flatten(0, 1), y[:, block_size // 2 :].flatten())
            print(f"iter {it}: loss {loss.item():.4f}, repeated half {copied.item():.4f}")


if __name__ == "__main__":
    main()
