from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn

FP8_MAX = 448.0


@dataclass
class QuantRecipe:
    matchers: tuple = ("mlp", "qkv")

    def applies(self, name):
        return any(m in name for m in self.matchers)


@dataclass
class TransformerConfig:
    hidden_size: int = 32
    num_layers: int = 2
    vocab_size: int = 32
    seq_length: int = 16
    fp8: Optional[str] = None
    fp4: Optional[str] = None
    quant_recipe: Optional[QuantRecipe] = None


def cast_to_fp8(x):
    scale = FP8_MAX / x.abs().amax().clamp(min=1e-12)
    return (x * scale).to(torch.float8_e4m3fn).to(x.dtype) / scale


class _QuantizedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inp, weight, weight_fp8):
        inp_fp8 = cast_to_fp8(inp)
        ctx.save_for_backward(inp_fp8, weight_fp8)
        return inp_fp8 @ weight_fp8.t()

    @staticmethod
    def backward(ctx, grad_output):
        inp_fp8, weight_fp8 = ctx.saved_tensors
        grad_weight = grad_output.flatten(0, -2).t() @ inp_fp8.flatten(0, -2)
        return grad_output @ weight_fp8, grad_weight, None


class TELinear(nn.Module):
    def __init__(self, name, config, cin, cout):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin) * cin**-0.5)
        self.bias = nn.Parameter(torch.zeros(cout))
        recipe = config.quant_recipe
        self.quantized = bool(config.fp8) or (recipe is not None and recipe.applies(name))
        self.is_first_microbatch = True
        self.fp8_weight = None

    def forward(self, x):
        if not self.quantized:
            return F.linear(x, self.weight, self.bias)
        if self.is_first_microbatch or self.fp8_weight is None:
            self.fp8_weight = cast_to_fp8(self.weight.detach())
        self.is_first_microbatch = False
        return _QuantizedMatmul.apply(x, self.weight, self.fp8_weight) + self.bias


class MegatronModule(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def set_is_first_microbatch(self):
        if self.config.fp8 is not None or self.config.fp4 is not None:
            for m in self.modules():
                if hasattr(m, "is_first_microbatch"):
                    m.is_first_microbatch = True


class Layer(MegatronModule):
    def __init__(self, index, config):
        super().__init__(config)
        d = config.hidden_size
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = TELinear(f"layers.{index}.qkv", config, d, 3 * d)
        self.proj = TELinear(f"layers.{index}.proj", config, d, d)
        self.fc1 = TELinear(f"layers.{index}.mlp.fc1", config, d, 4 * d)
        self.fc2 = TELinear(f"layers.{index}.mlp.fc2", config, 4 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class GPTModel(MegatronModule):
    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Parameter(torch.randn(config.seq_length, config.hidden_size) * 0.02)
        self.layers = nn.ModuleList([Layer(i, config) for i in range(config.num_layers)])
        self.final_norm = nn.LayerNorm(config.hidden_size)
        self.output_layer = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens, labels):
        x = self.embedding(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        logits = self.output_layer(self.final_norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class TokenStream:
    def __init__(self, config, seed):
        self.config = config
        self.gen = torch.Generator().manual_seed(seed)
        self.step = torch.tensor([1, 3, 5, 7])

    def next(self, batch):
        c = self.config
        start = torch.randint(0, c.vocab_size, (batch, 1), generator=self.gen)
        stride = self.step[torch.randint(0, 4, (batch, 1), generator=self.gen)]
        seq = (start + stride * torch.arange(c.seq_length + 1)) % c.vocab_size
        return seq[:, :-1], seq[:, 1:]


def train_step(model, optimizer, scheduler, stream, num_microbatches, micro_batch_size):
    model.set_is_first_microbatch()
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for _ in range(num_microbatches):
        tokens, labels = stream.next(micro_batch_size)
        loss = model(tokens, labels) / num_microbatches
        loss.backward()
        total += loss.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return total, norm.item()


def main():
    torch.manual_seed(1234)
    config = TransformerConfig(quant_recipe=QuantRecipe())
    model = GPTModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
    stream = TokenStream(config, 7)
    for iteration in range(1, 61):
        loss, norm = train_step(model, optimizer, scheduler, stream, 2, 8)
        if iteration % 20 == 0:
            print(f"iteration {iteration:4d} | lm loss {loss:.4f} | grad norm {norm:.3f}")


if __name__ == "__main__":
    main()
