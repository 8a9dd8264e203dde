import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class UNetLite(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.d1 = nn.Conv2d(1, ch, 4, 2, 1)
        self.d2 = nn.Conv2d(ch, 2 * ch, 4, 2, 1)
        self.u2 = nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1)
        self.u1 = nn.ConvTranspose2d(2 * ch, 1, 4, 2, 1)

    def forward(self, x):
        a = F.leaky_relu(self.d1(x), 0.2)
        b = F.leaky_relu(self.d2(a), 0.2)
        u = F.relu(self.u2(b))
        return torch.tanh(self.u1(torch.cat([u, a], 1)))


class PatchDiscriminator(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, ch, 4, 2, 1), nn.LeakyReLU(0.2),
                                 nn.Conv2d(ch, 2 * ch, 4, 2, 1), nn.LeakyReLU(0.2),
                                 nn.Conv2d(2 * ch, 1, 3, 1, 1))

    def forward(self, a, b):
        return self.net(torch.cat([a, b], 1))


class PairPool:
    def __init__(self, size):
        self.size, self.items = size, []

    def query(self, pairs):
        out = []
        for pair in pairs.detach():
            if len(self.items) < self.size:
                self.items.append(pair.clone())
                out.append(pair)
            elif random.random() < 0.5:
                k = random.randrange(self.size)
                out.append(self.items[k])
                self.items[k] = pair.clone()
            else:
                out.append(pair)
        return torch.stack(out)


class Pix2PixModel:
    def __init__(self, lambda_l1=10.0, lr=1e-3):
        self.netG, self.netD = UNetLite(), PatchDiscriminator()
        self.optG = torch.optim.Adam(self.netG.parameters(), lr=lr, betas=(0.5, 0.999))
        self.optD = torch.optim.Adam(self.netD.parameters(), lr=lr, betas=(0.5, 0.999))
        self.pool, self.lambda_l1 = PairPool(24), lambda_l1

    def gan(self, pred, real):
        return F.binary_cross_entropy_with_logits(pred, torch.full_like(pred, float(real)))

    def optimize_parameters(self, real_a, real_b):
        fake_b = self.netG(real_a)

        self.loss_adv = self.gan(self.netD(real_a, fake_b), True)
        self.loss_l1 = F.l1_loss(fake_b, real_b)
        self.optG.zero_grad()
        (self.loss_adv + self.lambda_l1 * self.loss_l1).backward()
        self.optG.step()

        pooled = self.pool.query(torch.cat([real_a, fake_b], 1))
        self.optD.zero_grad()
        loss_fake = self.gan(self.netD(pooled[:, :1], pooled[:, 1:]), False)
        loss_real = self.gan(self.netD(real_a, real_b), True)
        (0.5 * loss_fake).backward()
        (0.5 * loss_real).backward()
        self.optD.step()
        self.loss_d = 0.5 * (loss_fake.detach() + loss_real.detach())

    def current_losses(self):
        return {k: getattr(self, "loss_" + k).item() for k in ("adv", "l1", "d")}


def blobs(n, size=16):
    axis = torch.arange(size).float()
    cy, cx = torch.rand(2, n, 1, 1) * 10 + 3
    r = ((axis[:, None] - cy) ** 2 + (axis[None] - cx) ** 2).sqrt()
    edge = torch.exp(-((r - 4).abs())) * 2 - 1
    filled = torch.sigmoid(4 - r) * 2 - 1
    return edge.unsqueeze(1), filled.unsqueeze(1)


def main():
    random.seed(0)
    torch.manual_seed(0)
    model = Pix2PixModel()
    for step in range(1, 121):
        model.optimize_parameters(*blobs(8))
        if step % 40 == 0:
            print(step, " ".join(f"{k} {v:.4f}" for k, v in model.current_losses().items()))
    model.netG.eval()
    with torch.no_grad():
        a, b = blobs(32)
        print(f"test l1 {F.l1_loss(model.netG(a), b).item():.4f}")


if __name__ == "__main__":
    main()
