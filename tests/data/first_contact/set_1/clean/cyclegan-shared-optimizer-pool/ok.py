import itertools
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class ReplayBuffer:
    def __init__(self, max_size=20):
        self.max_size, self.data = max_size, []

    def push_and_pop(self, batch):
        out = []
        for element in batch.detach():
            element = element.unsqueeze(0)
            if len(self.data) < self.max_size:
                self.data.append(element)
                out.append(element)
            elif random.random() > 0.5:
                i = random.randrange(self.max_size)
                out.append(self.data[i].clone())
                self.data[i] = element
            else:
                out.append(element)
        return torch.cat(out)


def mlp(inp, out, norm=False):
    layers = [nn.Linear(inp, 32)] + ([nn.BatchNorm1d(32)] if norm else []) + [nn.ReLU(), nn.Linear(32, out)]
    return nn.Sequential(*layers)


class LambdaLR:
    def __init__(self, n_epochs, decay_start):
        self.n_epochs, self.decay_start = n_epochs, decay_start

    def step(self, epoch):
        return 1.0 - max(0, epoch - self.decay_start) / (self.n_epochs - self.decay_start)


def domains(n):
    a = torch.randn(n, 2) * 0.3 + torch.tensor([1.0, 0.0])
    b = torch.randn(n, 2) * 0.3 + torch.tensor([-1.0, 1.0])
    return a, b


def main(n_epochs=6, iters=25, batch=32):
    random.seed(2), torch.manual_seed(2)
    G_AB, G_BA, D_A, D_B = mlp(2, 2, norm=True), mlp(2, 2, norm=True), mlp(2, 1), mlp(2, 1)
    # a frozen feature extractor for a perceptual loss: gradients pass through it to the generators
    features = mlp(2, 16).eval()
    for p in features.parameters():
        p.requires_grad = False
    optimizer_G = torch.optim.Adam(itertools.chain(G_AB.parameters(), G_BA.parameters()), lr=1e-3, betas=(0.5, 0.999))
    optimizer_D = torch.optim.Adam(list(D_A.parameters()) + list(D_B.parameters()), lr=1e-3, betas=(0.5, 0.999))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, lr_lambda=LambdaLR(n_epochs, 3).step) for o in (optimizer_G, optimizer_D)]
    buffer_A, buffer_B = ReplayBuffer(), ReplayBuffer()
    for epoch in range(n_epochs):
        G_AB.train(), G_BA.train()
        for _ in range(iters):
            real_A, real_B = domains(batch)
            optimizer_G.zero_grad()
            fake_B, fake_A = G_AB(real_A), G_BA(real_B)
            loss_gan = F.mse_loss(D_B(fake_B), torch.ones(batch, 1)) + F.mse_loss(D_A(fake_A), torch.ones(batch, 1))
            # two backward passes over the same generator outputs, one step
            loss_gan.backward(retain_graph=True)
            loss_cycle = F.l1_loss(G_BA(fake_B), real_A) + F.l1_loss(G_AB(fake_A), real_B)
            loss_perceptual = F.mse_loss(features(G_BA(fake_B)), features(real_A))
            (5.0 * loss_cycle + loss_perceptual).backward()
            optimizer_G.step()

            optimizer_D.zero_grad()
            for D, real, fake, buffer in ((D_A, real_A, fake_A, buffer_A), (D_B, real_B, fake_B, buffer_B)):
                old = buffer.push_and_pop(fake)
                loss_D = 0.5 * (F.mse_loss(D(real), torch.ones(batch, 1)) + F.mse_loss(D(old), torch.zeros(batch, 1)))
                loss_D.backward()
            optimizer_D.step()
        for scheduler in schedulers:
            scheduler.step()
        G_AB.eval()
        with torch.no_grad():
            shift = G_AB(domains(200)[0]).mean(0)
        if (epoch + 1) % 2 == 0:
            print(f"epoch {epoch + 1}  G {loss_gan.item():.3f}  cycle {loss_cycle.item():.3f}  D {loss_D.item():.3f}  mean {shift.tolist()}")
    return {"cycle": loss_cycle.item()}


if __name__ == "__main__":
    main()
