import itertools
import random
from collections import OrderedDict
from types import SimpleNamespace

import torch
import torch.nn as nn


class GANLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("real", torch.tensor(1.0))
        self.register_buffer("fake", torch.tensor(0.0))
        self.loss = nn.MSELoss()

    def forward(self, prediction, target_is_real):
        target = self.real if target_is_real else self.fake
        return self.loss(prediction, target.expand_as(prediction))


class ImagePool:
    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, images):
        out = []
        for image in images:
            if len(self.images) < self.size:
                self.images.append(image)
                out.append(image)
            elif random.random() > 0.5:
                k = random.randrange(self.size)
                out.append(self.images[k])
                self.images[k] = image
            else:
                out.append(image)
        return torch.stack(out)


def define_G():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Tanh())


def define_D(n_layers):
    layers, ch = [], 1
    for _ in range(n_layers):
        layers += [nn.Conv2d(ch, 8, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
        ch = 8
    return nn.Sequential(*layers, nn.Conv2d(ch, 1, 2))


class CycleGANSemanticModel:
    def __init__(self, opt):
        self.opt = opt
        self.netG_A, self.netG_B = define_G(), define_G()
        self.netD_A, self.netD_B = define_D(1), define_D(1)
        self.netD_B_global = define_D(3)
        self.discriminators = [self.netD_A, self.netD_B, self.netD_B_global]
        self.fake_A_pool, self.fake_B_pool = ImagePool(opt.pool_size), ImagePool(opt.pool_size)
        self.criterionGAN, self.criterionCycle = GANLoss(), nn.L1Loss()
        self.optimizer_G = torch.optim.Adam(itertools.chain(self.netG_A.parameters(), self.netG_B.parameters()), lr=opt.lr, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(itertools.chain(*[d.parameters() for d in self.discriminators]), lr=opt.lr, betas=(0.5, 0.999))
        self.losses = OrderedDict()

    @staticmethod
    def set_requires_grad(nets, requires_grad):
        for net in nets:
            for param in net.parameters():
                param.requires_grad = requires_grad

    def set_input(self, batch):
        self.real_A, self.real_B = batch

    def forward(self):
        self.fake_B = self.netG_A(self.real_A)
        self.rec_A = self.netG_B(self.fake_B)
        self.fake_A = self.netG_B(self.real_B)
        self.rec_B = self.netG_A(self.fake_A)

    def backward_G(self):
        loss_G_A = self.criterionGAN(self.netD_B(self.fake_B), True) + self.criterionGAN(self.netD_B_global(self.fake_B), True)
        loss_G_B = self.criterionGAN(self.netD_A(self.fake_A), True)
        loss_cycle = self.criterionCycle(self.rec_A, self.real_A) + self.criterionCycle(self.rec_B, self.real_B)
        loss_G = loss_G_A + loss_G_B + self.opt.lambda_cycle * loss_cycle
        loss_G.backward()
        self.losses.update(G=loss_G.item(), cycle=loss_cycle.item())

    def loss_D_basic(self, netD, real, fake):
        return 0.5 * (self.criterionGAN(netD(real), True) + self.criterionGAN(netD(fake), False))

    def backward_D(self):
        fake_A = self.fake_A_pool.query(self.fake_A.detach())
        fake_B = self.fake_B_pool.query(self.fake_B.detach())
        loss_D_A = self.loss_D_basic(self.netD_A, self.real_A, fake_A)
        loss_D_B = self.loss_D_basic(self.netD_B, self.real_B, fake_B)
        loss_D_B_global = self.loss_D_basic(self.netD_B_global, self.real_B, fake_B)
        (loss_D_A + loss_D_B + loss_D_B_global).backward()
        self.losses.update(D_A=loss_D_A.item(), D_B=loss_D_B.item(), D_B_global=loss_D_B_global.item())

    def optimize_parameters(self):
        self.forward()
        self.set_requires_grad(self.discriminators, False)
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()
        self.set_requires_grad(self.discriminators, True)
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()


def domain_batch(n, size=16):
    a = torch.zeros(n, 1, size, size)
    a[:, :, :, ::4] = 1.0
    b = torch.zeros(n, 1, size, size)
    b[:, :, ::4, :] = 1.0
    return a + 0.1 * torch.randn_like(a), b + 0.1 * torch.randn_like(b)


def main():
    opt = SimpleNamespace(lr=1e-3, lambda_cycle=5.0, pool_size=12, epochs=3, iters=20, batch=4, seed=6)
    random.seed(opt.seed), torch.manual_seed(opt.seed)
    model = CycleGANSemanticModel(opt)
    start = [p.detach().clone() for p in model.netD_B_global.parameters()]
    for epoch in range(opt.epochs):
        for _ in range(opt.iters):
            model.set_input(domain_batch(opt.batch))
            model.optimize_parameters()
        print(f"(epoch {epoch + 1}) " + " ".join(f"{k}: {v:.3f}" for k, v in model.losses.items()))
    moved = sum(not torch.equal(a, b) for a, b in zip(start, model.netD_B_global.parameters()))
    return {"changed_global_disc_tensors": moved, "of": len(start)}


if __name__ == "__main__":
    main()
