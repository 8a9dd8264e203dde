import torch
import torch.nn.functional as F
from torch import nn


class GenBlock(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)

    def forward(self, x):
        x = F.interpolate(x, scale_factor=2)
        x = F.leaky_relu(self.conv1(x), 0.2)
        return F.leaky_relu(self.conv2(x), 0.2)


class Generator(nn.Module):
    def __init__(self, depth, latent, width):
        super().__init__()
        self.start = nn.Linear(latent, width * 16)
        self.width = width
        self.layers = nn.ModuleList(GenBlock(width, width) for _ in range(depth))
        self.rgb = nn.ModuleList(nn.Conv2d(width, 3, 1) for _ in range(depth))

    def forward(self, z, depth, alpha):
        x = self.start(z).view(-1, self.width, 4, 4)
        for block in self.layers[:depth]:
            x = block(x)
        previous = F.interpolate(self.rgb[max(depth - 1, 0)](x), scale_factor=2)
        return (1 - alpha) * previous + alpha * self.rgb[depth](self.layers[depth](x))


class Discriminator(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.rgb = nn.ModuleList(nn.Conv2d(3, width, 1) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.final = nn.Linear(width * 16, 1)

    def forward(self, x, depth, alpha):
        straight = F.avg_pool2d(F.leaky_relu(self.layers[depth](self.rgb[depth](x)), 0.2), 2)
        residual = self.rgb[max(depth - 1, 0)](F.avg_pool2d(x, 2))
        y = (1 - alpha) * residual + alpha * straight
        for block in reversed(self.layers[:depth]):
            y = F.avg_pool2d(F.leaky_relu(block(y), 0.2), 2)
        return self.final(y.flatten(1)).view(-1)


class WGANGP:
    def __init__(self, dis, drift=0.001, reg_lambda=10.0):
        self.dis = dis
        self.drift = drift
        self.reg_lambda = reg_lambda

    def gradient_penalty(self, real, fake, depth, alpha):
        epsilon = torch.rand(len(real), 1, 1, 1)
        merged = (epsilon * real + (1 - epsilon) * fake).detach().requires_grad_()
        op = self.dis(merged, depth, alpha)
        (gradient,) = torch.autograd.grad(op, merged, torch.ones_like(op), create_graph=True)
        norm = gradient.flatten(1).norm(p=2, dim=1)
        return self.reg_lambda * ((norm - 1) ** 2).mean()

    def dis_loss(self, real, fake, depth, alpha):
        fake_out = self.dis(fake, depth, alpha)
        real_out = self.dis(real, depth, alpha)
        loss = fake_out.mean() - real_out.mean() + self.drift * (real_out**2).mean()
        return loss + self.gradient_penalty(real, fake, depth, alpha)

    def gen_loss(self, fake, depth, alpha):
        return -self.dis(fake, depth, alpha).mean()


class ProGAN:
    def __init__(self, depth=3, latent=16, width=16, lr=1e-3):
        self.gen = Generator(depth, latent, width)
        self.dis = Discriminator(depth, width)
        self.latent, self.depth = latent, depth
        self.gen_optim = torch.optim.Adam(self.gen.parameters(), lr=lr, betas=(0.0, 0.99))
        self.dis_optim = torch.optim.Adam(self.dis.parameters(), lr=lr, betas=(0.0, 0.99))
        self.loss = WGANGP(self.dis)

    def optimize_discriminator(self, noise, real, depth, alpha):
        fake = self.gen(noise, depth, alpha).detach()
        loss = self.loss.dis_loss(real, fake, depth, alpha)
        self.dis_optim.zero_grad()
        loss.backward()
        self.dis_optim.step()
        return loss.item()

    def optimize_generator(self, noise, depth, alpha):
        loss = self.loss.gen_loss(self.gen(noise, depth, alpha), depth, alpha)
        self.gen_optim.zero_grad()
        loss.backward()
        self.gen_optim.step()
        return loss.item()

    def train(self, images, iterations, batch_size, fade_in=0.5):
        for depth in range(self.depth):
            size = 8 * 2**depth
            scaled = F.adaptive_avg_pool2d(images, size)
            for step in range(iterations[depth]):
                alpha = min(1.0, (step + 1) / (fade_in * iterations[depth]))
                real = scaled[torch.randint(0, len(scaled), (batch_size,))]
                noise = torch.randn(batch_size, self.latent)
                d_loss = self.optimize_discriminator(noise, real, depth, alpha)
                g_loss = self.optimize_generator(noise, depth, alpha)
            print(f"{size}x{size}: d {d_loss:.3f} g {g_loss:.3f}")


def make_images(n, size=32):
    ramp = torch.linspace(-1, 1, size)
    centre = torch.rand(n, 2, 1, 1) - 0.5
    distance = (ramp.view(1, 1, -1) - centre[:, 0]) ** 2 + (ramp.view(1, -1, 1) - centre[:, 1]) ** 2
    blob = torch.exp(-8 * distance).unsqueeze(1)
    return 2 * blob * torch.rand(n, 3, 1, 1) - 1


def main():
    torch.manual_seed(0)
    model = ProGAN()
    model.train(make_images(128), iterations=[12, 12, 16], batch_size=16)


if __name__ == "__main__":
    main()
