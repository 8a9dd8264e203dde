import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainConfig:
    epochs: int = 6
    batch_size: int = 4
    grad_accum: int = 8
    lr: float = 2e-2
    rank: int = 4
    num_timesteps: int = 50
    seed: int = 42


class LoRA(nn.Module):
    def __init__(self, linear, rank, alpha=8.0):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=1 / rank)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.linear(x) + self.scale * self.up(self.down(x))


class Denoiser(nn.Module):
    def __init__(self, dim=16, width=64):
        super().__init__()
        self.dim = dim
        self.time = nn.Linear(2 * 8, width)
        self.proj_in = nn.Linear(dim, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.proj_out = nn.Linear(width, dim)

    def forward(self, x, t):
        freq = 2.0 ** torch.arange(8)
        angles = t[:, None] * freq * math.pi
        h = self.proj_in(x) + self.time(torch.cat([angles.sin(), angles.cos()], -1))
        for layer in self.mid:
            h = h + layer(F.silu(h))
        return self.proj_out(F.silu(h))


class NoiseSchedule:
    def __init__(self, steps):
        betas = torch.linspace(1e-3, 0.1, steps)
        self.alphas_cumprod = torch.cumprod(1 - betas, 0)
        self.steps = steps

    def add_noise(self, x, noise, t):
        a = self.alphas_cumprod[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * noise


class LatentDataset(torch.utils.data.Dataset):
    def __init__(self, n, dim, generator):
        basis = torch.randn(3, dim, generator=generator)
        self.latents = torch.randn(n, 3, generator=generator) @ basis / 3**0.5

    def __len__(self):
        return len(self.latents)

    def __getitem__(self, i):
        return self.latents[i]


def inject_lora(model, rank):
    model.requires_grad_(False)
    model.mid = nn.ModuleList(LoRA(layer, rank) for layer in model.mid)
    model.proj_out = LoRA(model.proj_out, rank)
    return [p for p in model.parameters() if p.requires_grad]


class TrainingLoop:
    def __init__(self, cfg, model, params, loader):
        self.cfg, self.model, self.loader = cfg, model, loader
        self.params = params
        self.schedule = NoiseSchedule(cfg.num_timesteps)
        self.optimizer = torch.optim.SGD(params, lr=cfg.lr, momentum=0.9)
        self.global_step = 0

    def compute_loss(self, latents):
        t = torch.randint(0, self.schedule.steps, (len(latents),))
        noise = torch.randn_like(latents)
        pred = self.model(self.schedule.add_noise(latents, noise, t), t / self.schedule.steps)
        return F.mse_loss(pred, noise)

    def run_epoch(self, epoch):
        accum = self.cfg.grad_accum
        running = 0.0
        for batch_idx, latents in enumerate(self.loader):
            group_start = batch_idx - batch_idx % accum
            group_size = min(accum, len(self.loader) - group_start)
            group_end = (batch_idx + 1) % accum == 0 or batch_idx + 1 == len(self.loader)
            loss = self.compute_loss(latents)
            (loss / group_size).backward()
            running += loss.item()
            if group_end:
                torch.nn.utils.clip_grad_norm_(self.params, 10.0)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                self.global_step += 1
        return running / len(self.loader)

    def run(self):
        self.optimizer.zero_grad(set_to_none=True)
        for epoch in range(self.cfg.epochs):
            loss = self.run_epoch(epoch)
            print(f"epoch {epoch + 1}/{self.cfg.epochs} step {self.global_step} loss {loss:.4f}")


def main():
    cfg = TrainConfig()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    model = Denoiser()
    dataset = LatentDataset(60, model.dim, gen)
    loader = torch.utils.data.DataLoader(dataset, batch_size=cfg.batch_size, shuffle=True, generator=gen)
    params = inject_lora(model, cfg.rank)
    TrainingLoop(cfg, model, params, loader).run()


if __name__ == "__main__":
    main()
