"""A small DDPM on 2-D points, with EMA weights that are used for samples and checkpoints."""
import math
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainArgs:
    timesteps: int = 40
    batch_size: int = 64
    max_train_steps: int = 400
    lr: float = 2e-3
    warmup: int = 20
    ema_decay: float = 0.995
    save_steps: int = 50
    seed: int = 9


class TimeEmbedding(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, -math.log(1000), dim // 2)))

    def forward(self, t):
        angles = t[:, None].float() * self.freqs
        return torch.cat([angles.sin(), angles.cos()], -1)


class Denoiser(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.time = TimeEmbedding()
        self.net = nn.Sequential(nn.Linear(2 + 16, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
                                 nn.Linear(hidden, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], -1))


class EMAModel:
    def __init__(self, parameters, decay):
        self.shadow_params = [p.clone().detach() for p in parameters]
        self.decay, self.optimization_step = decay, 0

    @torch.no_grad()
    def step(self, parameters):
        self.optimization_step += 1
        decay = min(self.decay, (1 + self.optimization_step) / (10 + self.optimization_step))
        for s, p in zip(self.shadow_params, parameters):
            s.sub_((1 - decay) * (s - p))

    def copy_to(self, parameters):
        for s, p in zip(self.shadow_params, parameters):
            p.data.copy_(s.data)

    def store(self, parameters):
        self.collected_params = [p.detach().clone() for p in parameters]

    def restore(self, parameters):
        for c, p in zip(self.collected_params, parameters):
            p.data.copy_(c.data)


class Diffusion:
    def __init__(self, steps):
        self.steps = steps
        self.betas = torch.linspace(1e-3, 0.2, steps)
        self.alphas_bar = torch.cumprod(1 - self.betas, 0)

    def add_noise(self, x0, noise, t):
        ab = self.alphas_bar[t][:, None]
        return ab.sqrt() * x0 + (1 - ab).sqrt() * noise

    @torch.no_grad()
    def sample(self, unet, n, gen):
        x = torch.randn(n, 2, generator=gen)
        for i in reversed(range(self.steps)):
            eps = unet(x, torch.full((n,), i))
            x = (x - self.betas[i] / (1 - self.alphas_bar[i]).sqrt() * eps) / (1 - self.betas[i]).sqrt()
            if i > 0:
                x = x + self.betas[i].sqrt() * torch.randn(n, 2, generator=gen)
        return x


def ring(n, gen):
    angle = torch.rand(n, generator=gen) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1) * (1 + 0.05 * torch.randn(n, 1, generator=gen))


class Trainer:
    def __init__(self, args, workdir):
        self.args, self.workdir = args, workdir
        self.gen = torch.Generator().manual_seed(args.seed)
        self.unet, self.diffusion = Denoiser(), Diffusion(args.timesteps)
        self.optimizer = torch.optim.AdamW(self.unet.parameters(), lr=args.lr)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / args.warmup))
        self.ema = EMAModel(self.unet.parameters(), args.ema_decay)

    def save_checkpoint(self, global_step):
        self.ema.store(self.unet.parameters())
        self.ema.copy_to(self.unet.parameters())
        samples = self.diffusion.sample(self.unet, 64, torch.Generator().manual_seed(0))
        radius_error = (samples.norm(dim=1) - 1).abs().mean().item()
        torch.save({"unet": self.unet.state_dict(), "step": global_step}, os.path.join(self.workdir, "last.pt"))
        self.ema.restore(self.unet.parameters())
        return radius_error

    def train_step(self):
        x0 = ring(self.args.batch_size, self.gen)
        noise = torch.randn(x0.shape, generator=self.gen)
        t = torch.randint(0, self.args.timesteps, (len(x0),), generator=self.gen)
        loss = F.mse_loss(self.unet(self.diffusion.add_noise(x0, noise, t), t), noise)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.lr_scheduler.step()
        self.ema.step(self.unet.parameters())
        return loss.item()

    def train(self):
        losses = []
        for step in range(1, self.args.max_train_steps + 1):
            losses.append(self.train_step())
            if step % self.args.save_steps == 0:
                before = [p.detach().clone() for p in self.unet.parameters()]
                err = self.save_checkpoint(step)
                self.jump = sum((a - b).norm().item() for a, b in zip(before, self.unet.parameters()))
                if step % 200 == 0:
                    print(f"step {step} loss {sum(losses[-50:]) / 50:.4f} radius error {err:.3f}")
        return {"loss": round(sum(losses[-50:]) / 50, 4), "jump_at_save": round(self.jump, 4)}


def main():
    args = TrainArgs()
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as workdir:
        result = Trainer(args, workdir).train()
    print(result)
    return result


if __name__ == "__main__":
    main()
