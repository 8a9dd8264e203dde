import math

import torch
import torch.nn as nn
from torch.autograd import grad

LENGTH, NZ, BATCH, N_CRITIC, P_COEFF = 32, 8, 32, 3, 10.0


class Discriminator(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv1d(1, ch, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv1d(ch, ch * 2, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(ch * 2 * LENGTH // 4, 1),
        )

    def forward(self, x):
        return self.main(x)


class Generator(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.ch = ch
        self.project = nn.Linear(NZ, ch * 2 * LENGTH // 4)
        self.main = nn.Sequential(
            nn.ConvTranspose1d(ch * 2, ch, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose1d(ch, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(torch.relu(self.project(z)).view(-1, self.ch * 2, LENGTH // 4))


def signals(n):
    t = torch.linspace(0, 2 * math.pi, LENGTH)
    phase = torch.rand(n, 1) * 2 * math.pi
    return (0.8 * torch.sin(2 * t + phase)).unsqueeze(1)


def gradient_penalty(net, real, fake):
    eps = torch.rand(real.size(0), 1, 1)
    x_p = (eps * real + (1 - eps) * fake).requires_grad_(True)
    score = net(x_p)
    slope = grad(outputs=score, inputs=x_p, grad_outputs=torch.ones_like(score), create_graph=True)[0]
    return P_COEFF * (slope.flatten(1).norm(2, dim=1) - 1).pow(2).mean()


class WassersteinTrainer:
    def __init__(self, lr=5e-4):
        self.netD, self.netG = Discriminator(), Generator()
        self.optD = torch.optim.Adam(self.netD.parameters(), lr=lr, betas=(0.0, 0.9))
        self.optG = torch.optim.Adam(self.netG.parameters(), lr=lr, betas=(0.0, 0.9))
        self.log = {"loss_D": [], "penalty": [], "loss_G": []}

    def critic_step(self):
        real = signals(BATCH)
        fake = self.netG(torch.randn(BATCH, NZ)).detach()
        loss_real = -self.netD(real).mean()
        loss_fake = self.netD(fake).mean()
        grad_penalty = gradient_penalty(self.netD, real, fake)
        loss_D = loss_real + loss_fake
        self.optD.zero_grad()
        loss_D.backward()
        self.optD.step()
        self.log["loss_D"].append(loss_D.item())
        self.log["penalty"].append(grad_penalty.item())

    def generator_step(self):
        loss_G = -self.netD(self.netG(torch.randn(BATCH, NZ))).mean()
        self.optG.zero_grad()
        loss_G.backward()
        self.optG.step()
        self.log["loss_G"].append(loss_G.item())

    def fit(self, iterations):
        for _ in range(iterations):
            for _ in range(N_CRITIC):
                self.critic_step()
            self.generator_step()


def main():
    torch.manual_seed(31)
    trainer = WassersteinTrainer()
    trainer.fit(60)
    log = trainer.log
    print(f"critic {log['loss_D'][-1]:.3f} generator {log['loss_G'][-1]:.3f} penalty {log['penalty'][-1]:.3f}")
    return {"trainer": trainer}

if __name__ == "__main__":
    main()
