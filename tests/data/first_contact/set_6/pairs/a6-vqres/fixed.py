"""Vector-quantised autoencoder for small grey images."""
import torch
from torch import nn
from torch.nn import functional as F


class Quantize(nn.Module):
    def __init__(self, dim, n_embed, decay=0.95, eps=1e-5):
        super().__init__()
        self.decay = decay
        self.eps = eps
        embed = torch.randn(dim, n_embed)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(n_embed))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, input):
        flat = input.reshape(-1, self.embed.shape[0])
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed + self.embed.pow(2).sum(0, keepdim=True)
        ind = dist.argmin(1)
        onehot = F.one_hot(ind, self.embed.shape[1]).type(flat.dtype)
        quantize = F.embedding(ind.view(*input.shape[:-1]), self.embed.t())
        if self.training:
            with torch.no_grad():
                self.cluster_size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
                self.embed_avg.mul_(self.decay).add_(flat.t() @ onehot, alpha=1 - self.decay)
                n = self.cluster_size.sum()
                size = (self.cluster_size + self.eps) / (n + self.embed.shape[1] * self.eps) * n
                embed = self.embed_avg / size.unsqueeze(0)
        diff = (quantize.detach() - input).pow(2).mean()
        quantize = input + (quantize - input).detach()
        if self.training:
            self.embed = embed
        return quantize, diff


class ResBlock(nn.Module):
    def __init__(self, in_channel, channel):
        super().__init__()
        self.conv = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(in_channel, channel, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channel, in_channel, 1),
        )

    def forward(self, input):
        out = self.conv(input)
        out = out + input
        return out


class Encoder(nn.Module):
    def __init__(self, channel=16, n_res_block=2, n_res_channel=8):
        super().__init__()
        blocks = [nn.Conv2d(1, channel // 2, 4, stride=2, padding=1), nn.ReLU(inplace=True),
                  nn.Conv2d(channel // 2, channel, 3, padding=1)]
        blocks += [ResBlock(channel, n_res_channel) for _ in range(n_res_block)]
        blocks.append(nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*blocks)

    def forward(self, input):
        return self.blocks(input)


class Decoder(nn.Module):
    def __init__(self, in_channel, channel=16, n_res_block=2, n_res_channel=8):
        super().__init__()
        blocks = [nn.Conv2d(in_channel, channel, 3, padding=1)]
        blocks += [ResBlock(channel, n_res_channel) for _ in range(n_res_block)]
        blocks += [nn.ReLU(inplace=True), nn.ConvTranspose2d(channel, 1, 4, stride=2, padding=1)]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, input):
        return self.blocks(input)


class VQVAE(nn.Module):
    def __init__(self, channel=16, embed_dim=8, n_embed=32):
        super().__init__()
        self.enc = Encoder(channel)
        self.quantize_conv = nn.Conv2d(channel, embed_dim, 1)
        self.quantize = Quantize(embed_dim, n_embed)
        self.dec = Decoder(embed_dim, channel)

    def forward(self, input):
        z = self.quantize_conv(self.enc(input)).permute(0, 2, 3, 1)
        quant, diff = self.quantize(z)
        return self.dec(quant.permute(0, 3, 1, 2)), diff


def blobs(n, generator):
    centre = torch.rand(n, 2, 1, 1, generator=generator) * 10 + 3
    grid = torch.arange(16.0)
    dist = (grid[None, :, None] - centre[:, 0]) ** 2 + (grid[None, None, :] - centre[:, 1]) ** 2
    return torch.exp(-dist / 8).unsqueeze(1) * 2 - 1


def main():
    torch.manual_seed(11)
    generator = torch.Generator().manual_seed(3)
    model = VQVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    latent_loss_weight = 0.25
    for step in range(150):
        img = blobs(16, generator)
        out, latent_loss = model(img)
        recon_loss = F.mse_loss(out, img)
        loss = recon_loss + latent_loss_weight * latent_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1}: mse {recon_loss.item():.5f} latent {latent_loss.item():.5f}")
    return model


if __name__ == "__main__":
    main()
