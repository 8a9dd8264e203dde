import copy
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainArgs:
    seed: int = 42
    max_train_steps: int = 160
    batch_size: int = 32
    learning_rate: float = 2e-3
    lambda_gan: float = 1.0
    lambda_l2: float = 0.1
    max_grad_norm: float = 10.0
    ema_decay: float = 0.98
    lr_warmup_steps: int = 10
    log_every: int = 40
    adam_betas: tuple = field(default=(0.5, 0.99))


class PairedToyDataset(torch.utils.data.IterableDataset):
    def __init__(self, args):
        self.args = args
        self.mix = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))

    def __iter__(self):
        while True:
            cond = torch.randn(6)
            yield {"conditioning": cond, "target": torch.tanh(self.mix @ cond) + 0.1 * torch.randn(6)}


class TurboGenerator(nn.Module):
    def __init__(self, dim=6, noise=4, width=64):
        super().__init__()
        self.noise = noise
        self.net = nn.Sequential(nn.Linear(dim + noise, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, dim))

    def forward(self, cond):
        return self.net(torch.cat([cond, torch.randn(cond.shape[0], self.noise)], dim=1))


class VisionDiscriminator(nn.Module):
    def __init__(self, dim=6, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * dim, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, x, cond, for_real=False, for_G=False):
        logits = self.net(torch.cat([x, cond], dim=1))
        return F.softplus(-logits).mean() if (for_real or for_G) else F.softplus(logits).mean()

    @torch.no_grad()
    def accuracy(self, x, cond, real):
        return ((self.net(torch.cat([x, cond], dim=1)) > 0) == real).float().mean().item()


@torch.no_grad()
def update_ema(ema, model, decay):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 1 - decay)


def train(args):
    loader = torch.utils.data.DataLoader(PairedToyDataset(args), batch_size=args.batch_size)
    net_gen, net_disc = TurboGenerator(), VisionDiscriminator()
    ema = copy.deepcopy(net_gen).requires_grad_(False)
    optimizer_gen = torch.optim.AdamW(net_gen.parameters(), lr=args.learning_rate, betas=args.adam_betas, weight_decay=1e-2)
    optimizer_disc = torch.optim.AdamW(net_disc.parameters(), lr=args.learning_rate, betas=args.adam_betas, weight_decay=1e-2)
    warmup = lambda step: min(1.0, (step + 1) / args.lr_warmup_steps)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, warmup) for o in (optimizer_gen, optimizer_disc)]
    accs, losses = [], []
    for step, batch in enumerate(loader):
        if step == args.max_train_steps:
            break
        x_src, x_tgt = batch["conditioning"], batch["target"]
        optimizer_gen.zero_grad(set_to_none=True)
        optimizer_disc.zero_grad(set_to_none=True)

        """Reconstruction and GAN loss for the generator"""
        x_pred = net_gen(x_src)
        loss_l2 = F.mse_loss(x_pred, x_tgt) * args.lambda_l2
        loss_G = net_disc(x_pred, x_src, for_G=True) * args.lambda_gan
        (loss_l2 + loss_G).backward()
        nn.utils.clip_grad_norm_(net_gen.parameters(), args.max_grad_norm)
        optimizer_gen.step()
        update_ema(ema, net_gen, args.ema_decay)

        """Discriminator loss on real and generated pairs"""
        lossD_real = net_disc(x_tgt, x_src, for_real=True) * args.lambda_gan
        lossD_fake = net_disc(x_pred.detach(), x_src) * args.lambda_gan
        lossD = lossD_real + lossD_fake
        optimizer_disc.zero_grad(set_to_none=True)
        lossD.backward()
        nn.utils.clip_grad_norm_(net_disc.parameters(), args.max_grad_norm)
        optimizer_disc.step()
        for scheduler in schedulers:
            scheduler.step()

        losses.append(lossD.item())
        accs.append(0.5 * (net_disc.accuracy(x_tgt, x_src, True) + net_disc.accuracy(x_pred.detach(), x_src, False)))
        if (step + 1) % args.log_every == 0:
            print(f"step {step + 1}  G {loss_G.item():.3f}  D {lossD.item():.3f}  l2 {loss_l2.item():.4f}")
    return net_gen, net_disc, ema, accs, losses


def main():
    args = TrainArgs()
    torch.manual_seed(args.seed)
    _, _, _, accs, losses = train(args)
    half = len(losses) // 2
    return {"disc_loss_last_half": sum(losses[half:]) / half, "disc_accuracy_last_half": sum(accs[half:]) / half}


if __name__ == "__main__":
    main()
