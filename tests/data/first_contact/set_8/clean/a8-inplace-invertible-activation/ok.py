import torch
import torch.nn.functional as F
from torch import nn


class InPlaceLeakyReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.slope = slope
        ctx.mark_dirty(x)
        x.mul_(torch.where(x > 0, 1.0, slope).to(x.dtype))
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, grad_output, grad_output * ctx.slope), None


class GroupScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, groups):
        batch, channels, height, width = x.shape
        grouped = x.view(batch, groups, channels // groups, height, width)
        inv = torch.rsqrt(grouped.square().mean(dim=(2, 3, 4), keepdim=True) + 1e-5)
        ctx.groups = groups
        ctx.save_for_backward(x, gain, inv)
        return (grouped * inv).view_as(x) * gain.view(1, -1, 1, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, gain, inv = ctx.saved_tensors
        batch, channels, height, width = x.shape
        shape = (batch, ctx.groups, channels // ctx.groups, height, width)
        hat = x.view(shape) * inv
        grad_x = grad_gain = None
        if ctx.needs_input_grad[0]:
            scaled = (grad_output * gain.view(1, -1, 1, 1)).view(shape)
            mean = (scaled * hat).mean(dim=(2, 3, 4), keepdim=True)
            grad_x = (inv * (scaled - hat * mean)).view_as(x)
        if ctx.needs_input_grad[1]:
            grad_gain = (grad_output * hat.view_as(x)).sum(dim=(0, 2, 3))
        return grad_x, grad_gain, None


class InPlaceBlock(nn.Module):
    def __init__(self, c_in, c_out, groups=4, slope=0.1):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, stride=2, padding=1, bias=False)
        self.gain = nn.Parameter(torch.ones(c_out))
        self.groups, self.slope = groups, slope

    def forward(self, x):
        x = GroupScale.apply(self.conv(x), self.gain, self.groups)
        return InPlaceLeakyReLU.apply(x, self.slope)


class SaliencyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(InPlaceBlock(1, 16), InPlaceBlock(16, 32))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ReLU(inplace=True),
            nn.ConvTranspose2d(16, 1, 2, stride=2),
        )

    def forward(self, x):
        return self.up(self.down(x))


def target(x, gain):
    return InPlaceLeakyReLU.apply(GroupScale.apply(x, gain, 2), 0.1)


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 3, 3, generator=generator, dtype=torch.float64)
    gain = 0.5 + torch.rand(4, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), gain.requires_grad_()


def make_maps(n, size=20):
    images = 0.5 * torch.randn(n, 1, size, size)
    masks = torch.zeros(n, 1, size, size)
    for i in range(n):
        h, w = torch.randint(4, 10, (2,)).tolist()
        y, x = torch.randint(0, size - 10, (2,)).tolist()
        masks[i, 0, y : y + h, x : x + w] = 1.0
    return images + masks, masks


def main():
    torch.manual_seed(0)
    images, masks = make_maps(128)
    model = SaliencyNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(8):
        total = 0.0
        for pick in torch.randperm(len(images)).split(16):
            loss = F.binary_cross_entropy_with_logits(model(images[pick]), masks[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / 8:.4f}")


if __name__ == "__main__":
    main()
