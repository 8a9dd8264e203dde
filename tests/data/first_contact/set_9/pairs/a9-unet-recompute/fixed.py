import math

import torch
import torch.nn.functional as F
from torch import nn


def timestep_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half).float() / half)
    args = timesteps[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


def checkpoint(func, inputs, params, flag):
    if flag:
        args = tuple(inputs) + tuple(params)
        return CheckpointFunction.apply(func, len(inputs), *args)
    return func(*inputs)


class CheckpointFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run_function, length, *args):
        ctx.run_function = run_function
        ctx.length = length
        ctx.rng_state = torch.get_rng_state()
        ctx.save_for_backward(*args)
        with torch.no_grad():
            output = ctx.run_function(*args[:length])
        return output

    @staticmethod
    def backward(ctx, grad_output):
        saved = ctx.saved_tensors
        inputs = [x.detach().requires_grad_(True) for x in saved[: ctx.length]]
        params = list(saved[ctx.length :])
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.rng_state)
            shallow = [x.view_as(x) for x in inputs]
            output = ctx.run_function(*shallow)
        grads = torch.autograd.grad(output, inputs + params, grad_output, allow_unused=True)
        return (None, None) + grads


class ResBlock(nn.Module):
    def __init__(self, channels, emb_channels, dropout, use_checkpoint):
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.in_layers = nn.Sequential(
            nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(emb_channels, channels))
        self.out_norm = nn.GroupNorm(4, channels)
        self.out_rest = nn.Sequential(
            nn.SiLU(), nn.Dropout(p=dropout), nn.Conv2d(channels, channels, 3, padding=1)
        )

    def forward(self, x, emb):
        return checkpoint(self._forward, (x, emb), tuple(self.parameters()), self.use_checkpoint)

    def _forward(self, x, emb):
        h = self.in_layers(x)
        h = h + self.emb_layers(emb)[:, :, None, None]
        return x + self.out_rest(self.out_norm(h))


class UNetModel(nn.Module):
    def __init__(self, in_channels=1, channels=16, num_res_blocks=3, dropout=0.3, use_checkpoint=True):
        super().__init__()
        self.channels = channels
        emb = channels * 2
        self.time_embed = nn.Sequential(nn.Linear(channels, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            [ResBlock(channels, emb, dropout, use_checkpoint) for _ in range(num_res_blocks)]
        )
        self.out = nn.Sequential(
            nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, in_channels, 3, padding=1)
        )

    def forward(self, x, timesteps):
        emb = self.time_embed(timestep_embedding(timesteps, self.channels))
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, emb)
        return self.out(h)


class GaussianDiffusion:
    def __init__(self, steps=50):
        betas = torch.linspace(1e-3, 0.12, steps)
        self.steps = steps
        self.alphas_cumprod = torch.cumprod(1 - betas, dim=0)

    def q_sample(self, x0, t, noise):
        a = self.alphas_cumprod[t][:, None, None, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * noise

    def training_losses(self, model, x0):
        t = torch.randint(0, self.steps, (x0.shape[0],))
        noise = torch.randn_like(x0)
        return F.mse_loss(model(self.q_sample(x0, t, noise), t), noise)


def stripes(n, size=8):
    phase = torch.rand(n, 1, 1, 1) * 2 * math.pi
    grid = torch.arange(size).float()[None, None, None, :].expand(n, 1, size, size)
    return torch.sin(grid * 0.8 + phase)


class TrainLoop:
    def __init__(self, model, diffusion, lr=2e-3, batch_size=16):
        self.model = model
        self.diffusion = diffusion
        self.batch_size = batch_size
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)

    def run_step(self):
        loss = self.diffusion.training_losses(self.model, stripes(self.batch_size))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def run_loop(self, iterations):
        history = []
        for step in range(1, iterations + 1):
            history.append(self.run_step())
            if step % 20 == 0:
                print(step, round(sum(history[-20:]) / 20, 4))
        return history


def _mix(weight):
    return lambda x: F.dropout(F.silu(x) @ weight, p=0.4, training=True)


def target(x, weight):
    torch.manual_seed(11)
    return checkpoint(_mix(weight), (x,), (weight,), True)


def make_inputs():
    g = torch.Generator().manual_seed(5)
    x = torch.randn(3, 4, generator=g, dtype=torch.double)
    weight = torch.randn(4, 4, generator=g, dtype=torch.double)
    return x.requires_grad_(True), weight.requires_grad_(True)


def main():
    torch.manual_seed(0)
    loop = TrainLoop(UNetModel(), GaussianDiffusion())
    loop.run_loop(80)


if __name__ == "__main__":
    main()
