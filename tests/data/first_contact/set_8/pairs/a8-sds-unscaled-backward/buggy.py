import argparse

import torch
import torch.nn.functional as F
from torch import nn


class SpecifyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_tensor, gt_grad):
        ctx.save_for_backward(gt_grad)
        return torch.ones([1], dtype=input_tensor.dtype)

    @staticmethod
    def backward(ctx, grad_scale):
        (gt_grad,) = ctx.saved_tensors
        return gt_grad, None


class Denoiser(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.inp = nn.Conv2d(3, channels, 3, padding=1)
        self.temb = nn.Linear(1, channels)
        self.mid = nn.Conv2d(channels, channels, 3, padding=1)
        self.out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x, t):
        h = F.silu(self.inp(x) + self.temb(t.view(-1, 1))[:, :, None, None])
        return self.out(h + F.silu(self.mid(h)))


class Guidance(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.unet = Denoiser()
        self.size = size
        ramp = torch.linspace(-1, 1, size)
        self.register_buffer("mean_image", torch.stack([
            ramp.view(1, -1).expand(size, size),
            ramp.view(-1, 1).expand(size, size),
            -ramp.view(1, -1).expand(size, size),
        ]))

    @staticmethod
    def noise(x, eps, t):
        keep = (1.0 - t).view(-1, 1, 1, 1)
        return keep.sqrt() * x + (1.0 - keep).sqrt() * eps

    def pretrain(self, steps):
        optimizer = torch.optim.Adam(self.unet.parameters(), lr=5e-3)
        for _ in range(steps):
            x = self.mean_image + 0.05 * torch.randn(16, 3, self.size, self.size)
            t, eps = 0.02 + 0.96 * torch.rand(16), torch.randn_like(x)
            loss = F.mse_loss(self.unet(self.noise(x, eps, t), t), eps)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.requires_grad_(False)
        self.eval()

    def train_step(self, rgb, lambda_guidance):
        t = 0.3 + 0.6 * torch.rand(len(rgb))
        with torch.no_grad():
            eps = torch.randn_like(rgb)
            predicted = self.unet(self.noise(rgb, eps, t), t)
        grad = lambda_guidance * t.view(-1, 1, 1, 1) * (predicted - eps)
        grad = torch.nan_to_num(grad)
        return SpecifyGradient.apply(rgb, grad)


class Field(nn.Module):
    def __init__(self, size, hidden=64):
        super().__init__()
        ramp = torch.linspace(-1, 1, size)
        yy, xx = torch.meshgrid(ramp, ramp, indexing="ij")
        points = torch.stack([xx, yy], dim=-1).view(-1, 2)
        freq = 2.0 ** torch.arange(3)
        angle = (points.unsqueeze(-1) * freq).flatten(1)
        self.register_buffer("encoding", torch.cat([points, angle.sin(), angle.cos()], dim=1))
        self.sigma = nn.Sequential(nn.Linear(14, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.color = nn.Sequential(nn.Linear(14, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        self.size = size

    def render(self, batch):
        opacity = 1.0 - torch.exp(-F.softplus(self.sigma(self.encoding)))
        color = torch.tanh(self.color(self.encoding))
        image = (opacity * color).T.view(1, 3, self.size, self.size)
        jitter = 1.0 + 0.02 * torch.randn(batch, 1, 1, 1)
        return image * jitter, opacity


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, default=200)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--lambda_guidance", type=float, default=1.0)
    parser.add_argument("--lambda_opacity", type=float, default=1.0)
    parser.add_argument("--size", type=int, default=12)
    return parser.parse_args([])


def main():
    opt = parse_options()
    torch.manual_seed(0)
    guidance = Guidance(opt.size)
    guidance.pretrain(150)
    field = Field(opt.size)
    optimizer = torch.optim.Adam(field.parameters(), lr=opt.lr, eps=1e-8)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=1000)
    for step in range(opt.iters):
        optimizer.zero_grad()
        rgb, opacity = field.render(4)
        loss = guidance.train_step(rgb, opt.lambda_guidance)
        loss = loss + opt.lambda_opacity * opacity.square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step:3d} opacity {opacity.mean().item():.4f}")
    with torch.no_grad():
        rgb, opacity = field.render(1)
        distance = F.mse_loss(rgb[0], guidance.mean_image).item()
    print(f"opacity {opacity.mean().item():.4f}")
    print(f"squared distance to the guided image {distance:.4f}")


if __name__ == "__main__":
    main()
