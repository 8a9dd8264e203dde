import torch
import torch.nn.functional as F
from torch import nn


class VectorQuantizer(nn.Module):
    def __init__(self, n_e, dim, beta=0.25):
        super().__init__()
        self.beta = beta
        self.embedding = nn.Embedding(n_e, dim)
        nn.init.uniform_(self.embedding.weight, -1.0 / n_e, 1.0 / n_e)

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1)
        with torch.no_grad():
            index = torch.cdist(flat.flatten(0, 2), self.embedding.weight).argmin(dim=1)
        z_q = self.embedding(index).view_as(flat)
        loss = F.mse_loss(z_q, flat.detach()) + self.beta * F.mse_loss(flat, z_q.detach())
        z_q = flat + (z_q - flat).detach()
        return z_q.permute(0, 3, 1, 2), loss


class VQModel(nn.Module):
    def __init__(self, ch=16, dim=8, n_e=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, ch, 4, 2, 1), nn.SiLU(), nn.Conv2d(ch, dim, 4, 2, 1))
        self.quantize = VectorQuantizer(n_e, dim)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(dim, ch, 4, 2, 1), nn.SiLU())
        self.conv_out = nn.ConvTranspose2d(ch, 1, 4, 2, 1)

    def forward(self, x):
        z_q, loss = self.quantize(self.encoder(x))
        return self.conv_out(self.decoder(z_q)), loss

    def get_last_layer(self):
        return self.conv_out.weight


class PatchDiscriminator(nn.Sequential):
    def __init__(self, ch=12):
        super().__init__(
            nn.Conv2d(1, ch, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ch, ch, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ch, 1, 1)
        )


class VQLoss(nn.Module):
    def __init__(self, disc_start, disc_weight=0.8):
        super().__init__()
        self.discriminator = PatchDiscriminator()
        self.disc_start = disc_start
        self.disc_weight = disc_weight

    def adaptive_weight(self, nll_loss, g_loss, last_layer):
        nll_grad = torch.autograd.grad(nll_loss, last_layer, retain_graph=True)[0]
        g_grad = torch.autograd.grad(g_loss, last_layer, retain_graph=True)[0]
        weight = nll_grad.norm() / (g_grad.norm() + 1e-4)
        return weight.clamp(0.0, 1e4).detach() * self.disc_weight

    def generator_loss(self, codebook_loss, x, rec, step, last_layer):
        nll_loss = (x - rec).abs().mean()
        if step < self.disc_start:
            return nll_loss + codebook_loss, {"nll": nll_loss.item()}
        g_loss = -self.discriminator(rec).mean()
        d_weight = self.adaptive_weight(nll_loss, g_loss, last_layer)
        logs = {"nll": nll_loss.item(), "g": g_loss.item(), "w": d_weight.item()}
        return nll_loss + d_weight * g_loss + codebook_loss, logs

    def discriminator_loss(self, x, rec):
        real, fake = self.discriminator(x.detach()), self.discriminator(rec.detach())
        return 0.5 * (F.relu(1 - real).mean() + F.relu(1 + fake).mean())


class TrainingModule:
    def __init__(self, disc_start):
        self.model = VQModel()
        self.loss = VQLoss(disc_start)
        self.opt_ae = torch.optim.Adam(self.model.parameters(), lr=3e-3, betas=(0.5, 0.9))
        self.opt_disc = torch.optim.Adam(self.loss.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def training_step(self, x, step):
        rec, codebook_loss = self.model(x)
        self.loss.discriminator.requires_grad_(False)
        ae_loss, logs = self.loss.generator_loss(codebook_loss, x, rec, step, self.model.get_last_layer())
        self.opt_ae.zero_grad()
        ae_loss.backward()
        self.opt_ae.step()
        self.loss.discriminator.requires_grad_(True)
        if step >= self.loss.disc_start:
            d_loss = self.loss.discriminator_loss(x, rec)
            self.opt_disc.zero_grad()
            d_loss.backward()
            self.opt_disc.step()
            logs["d"] = d_loss.item()
        return logs


def rings(n, generator):
    axis = torch.linspace(-1, 1, 16)
    radius = 0.3 + 0.5 * torch.rand(n, 1, 1, 1, generator=generator)
    dist = (axis[None, :] ** 2 + axis[:, None] ** 2).sqrt()
    return torch.exp(-((dist - radius) ** 2) * 30)


def main():
    torch.manual_seed(14)
    gen = torch.Generator().manual_seed(14)
    trainer = TrainingModule(disc_start=25)
    for step in range(75):
        logs = trainer.training_step(rings(12, gen), step)
        if step % 15 == 0:
            print(step, {k: round(v, 4) for k, v in logs.items()})


if __name__ == "__main__":
    main()
