import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class Opts:
    lr = 1e-3
    epochs = 4
    iters_per_epoch = 30
    batch = 48
    dis_repeats = 1
    clip = 0.5
    lambda_rec = 20.0
    lambda_gan = 1.0
    n_classes = 4
    seed = 2


class ResBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        return F.relu(x + self.body(x))


class CondGenerator(nn.Module):
    def __init__(self, n_classes, z=8, width=32, out=10):
        super().__init__()
        self.embed = nn.Embedding(n_classes, z)
        self.net = nn.Sequential(nn.Linear(2 * z, width), nn.ReLU(), ResBlock(width), nn.Linear(width, out))
        self.z = z

    def forward(self, y):
        return self.net(torch.cat([torch.randn(len(y), self.z), self.embed(y)], dim=1))


class CondDiscriminator(nn.Module):
    def __init__(self, n_classes, width=32, inp=10):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(inp, width), nn.LeakyReLU(0.2), ResBlock(width))
        self.out, self.embed = nn.Linear(width, 1), nn.Embedding(n_classes, width)

    def forward(self, x, y):
        h = self.features(x)
        return self.out(h).squeeze(1) + (h * self.embed(y)).sum(1)


class MakeupAttack(nn.Module):
    """Model wrapper in the manner of the usual GAN repositories: networks, optimizers, schedulers, updates."""

    def __init__(self, opts):
        super().__init__()
        self.opts = opts
        self.gen, self.dis = CondGenerator(opts.n_classes), CondDiscriminator(opts.n_classes)
        self.gen_opt = torch.optim.SGD(self.gen.parameters(), lr=20 * opts.lr, momentum=0.9)
        self.dis_opt = torch.optim.Adam(self.dis.parameters(), lr=opts.lr, betas=(0.5, 0.999), weight_decay=1e-4)
        self.sched = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (self.gen_opt, self.dis_opt)]
        self.applied_norms = []

    def update_dis(self, x, y):
        self.dis_opt.zero_grad()
        fake = self.gen(y).detach()
        loss = F.relu(1 - self.dis(x, y)).mean() + F.relu(1 + self.dis(fake, y)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.dis.parameters(), self.opts.clip)
        self.dis_opt.step()
        return loss.item()

    def update_gen(self, x, y):
        self.gen_opt.zero_grad()
        fake = self.gen(y)
        loss_gan = -self.dis(fake, y).mean()
        loss_rec = F.mse_loss(fake.mean(0), x.mean(0))
        loss = self.opts.lambda_gan * loss_gan + self.opts.lambda_rec * loss_rec
        loss.backward()
        nn.utils.clip_grad_norm_(self.dis.parameters(), self.opts.clip)
        self.applied_norms.append(torch.stack([p.grad.norm() for p in self.gen.parameters()]).norm().item())
        self.gen_opt.step()
        return loss.item()

    def update_lr(self):
        for s in self.sched:
            s.step()

    def save(self, path, epoch):
        torch.save({"gen": self.gen.state_dict(), "dis": self.dis.state_dict(), "epoch": epoch}, path)


def batches(opts, centers):
    for _ in range(opts.iters_per_epoch):
        y = torch.randint(0, opts.n_classes, (opts.batch,))
        yield centers[y] + 0.3 * torch.randn(opts.batch, centers.shape[1]), y


def main():
    opts = Opts()
    torch.manual_seed(opts.seed)
    centers = 3 * torch.randn(opts.n_classes, 10)
    model = MakeupAttack(opts)
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(opts.epochs):
            for x, y in batches(opts, centers):
                for _ in range(opts.dis_repeats):
                    d_loss = model.update_dis(x, y)
                g_loss = model.update_gen(x, y)
            model.update_lr()
            model.save(os.path.join(folder, f"{epoch:03d}.pt"), epoch)
            print(f"epoch {epoch + 1}  dis {d_loss:.3f}  gen {g_loss:.3f}")
    return {"max_applied_gen_grad_norm": max(model.applied_norms), "gen_loss": g_loss}


if __name__ == "__main__":
    main()
