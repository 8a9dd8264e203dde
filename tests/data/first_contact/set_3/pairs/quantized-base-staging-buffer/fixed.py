"""LoRA on a frozen 8-bit base: weights are unpacked into one staging buffer, layer by layer."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    dim: int = 24
    layers: int = 4
    rank: int = 4
    classes: int = 6
    steps: int = 200
    batch: int = 32
    lr: float = 3e-3
    eval_every: int = 100
    seed: int = 23


class WeightStore:
    """Packed weights and their scales; load() unpacks one layer into the shared buffer."""

    def __init__(self, weights):
        self.scales = [w.abs().amax(dim=1, keepdim=True) / 127 for w in weights]
        self.packed = [(w / s).round().to(torch.int8) for w, s in zip(weights, self.scales)]
        self.buffer = torch.empty_like(weights[0])

    def load(self, index):
        torch.mul(self.packed[index].to(self.buffer.dtype), self.scales[index], out=self.buffer)
        return self.buffer


class MatMul8bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, store, index):
        weight = store.load(index)
        ctx.store, ctx.index = store, index
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output @ ctx.store.load(ctx.index), None, None


def target(x):
    generator = torch.Generator().manual_seed(0)
    store = WeightStore([torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(2)])
    return MatMul8bit.apply(torch.tanh(MatMul8bit.apply(x, store, 0)), store, 1)


def make_inputs():
    generator = torch.Generator().manual_seed(1)
    return (0.3 * torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True),)


class LoraLayer(nn.Module):
    def __init__(self, cfg, store, index):
        super().__init__()
        self.store, self.index = store, index
        self.down = nn.Linear(cfg.dim, cfg.rank, bias=False)
        self.up = nn.Linear(cfg.rank, cfg.dim, bias=False)
        nn.init.zeros_(self.up.weight)
        self.norm = nn.LayerNorm(cfg.dim, elementwise_affine=False)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.tanh(MatMul8bit.apply(h, self.store, self.index) + self.up(self.down(h)))


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        base = [torch.randn(cfg.dim, cfg.dim) / cfg.dim ** 0.5 for _ in range(cfg.layers)]
        self.store = WeightStore(base)
        self.embed = nn.Linear(cfg.dim, cfg.dim)
        self.layers = nn.ModuleList(LoraLayer(cfg, self.store, i) for i in range(cfg.layers))
        self.head = nn.Linear(cfg.dim, cfg.classes)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Finetuner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Model(cfg)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.teacher = nn.Sequential(nn.Linear(cfg.dim, 32), nn.Tanh(), nn.Linear(32, cfg.classes))
        for p in self.teacher.parameters():
            p.requires_grad_(False).mul_(3)

    def batch(self, n, generator):
        x = torch.randn(n, self.cfg.dim, generator=generator)
        return x, self.teacher(x).argmax(1)

    def train(self):
        generator = torch.Generator().manual_seed(self.cfg.seed)
        first_norm = None
        for step in range(self.cfg.steps):
            self.model.train()
            x, y = self.batch(self.cfg.batch, generator)
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            if first_norm is None:
                first_norm = self.model.embed.weight.grad.norm().item()
            self.optimizer.step()
            if step % self.cfg.eval_every == 0:
                print(f"step {step} loss {loss.item():.4f} eval {self.evaluate():.4f}")
        return first_norm

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, y = self.batch(512, torch.Generator().manual_seed(7))
        return F.cross_entropy(self.model(x), y).item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    tuner = Finetuner(cfg)
    norm = tuner.train()
    final = tuner.evaluate()
    print(f"final eval loss {final:.4f}")
    return {"eval_loss": final, "first_embed_grad_norm": norm}


if __name__ == "__main__":
    main()
