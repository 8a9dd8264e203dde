# Contrastive pretraining of a small encoder with a layer-wise adaptive optimizer.
import torch
from torch import nn
from torch.nn import functional as F


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling with momentum, for large batches."""

    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-6, eeta=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eeta=eeta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.add(p, alpha=group["weight_decay"])
                w_norm = torch.norm(p)
                g_norm = torch.norm(grad)
                one = torch.ones_like(w_norm)
                trust_ratio = torch.where(
                    w_norm.ge(0),
                    torch.where(g_norm.ge(0), group["eeta"] * w_norm / g_norm, one),
                    one,
                ).item()
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buf = state["momentum_buffer"]
                buf.mul_(group["momentum"]).add_(grad, alpha=group["lr"] * trust_ratio)
                p.sub_(buf)


class Encoder(nn.Module):
    def __init__(self, dim=20, width=32, out=16):
        super().__init__()
        self.layer1 = nn.Linear(dim, width)
        self.layer2 = nn.Linear(width, width)
        self.projector = nn.Linear(width, out)
        self.apply(self._init)

    @staticmethod
    def _init(module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(self, x):
        h = F.relu(self.layer1(x))
        h = F.relu(self.layer2(h))
        return self.projector(h)


def nt_xent(z_i, z_j, temperature=0.5):
    n = len(z_i)
    z = F.normalize(torch.cat([z_i, z_j]), dim=1)
    sim = z @ z.t() / temperature
    sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    target = torch.arange(2 * n).roll(n)
    return F.cross_entropy(sim, target)


def augment(x, generator):
    noise = 0.3 * torch.randn(x.shape, generator=generator)
    keep = (torch.rand(x.shape, generator=generator) > 0.2).float()
    return (x + noise) * keep


def train(args):
    torch.manual_seed(args["seed"])
    gen = torch.Generator().manual_seed(args["seed"] + 1)
    centres = 2.0 * torch.randn(12, 20) + 0.5
    encoder = Encoder()
    optimizer = LARS(encoder.parameters(), lr=args["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args["steps"])
    for step in range(args["steps"]):
        x = centres[torch.randint(0, 12, (args["batch"],), generator=gen)]
        x = x + 0.5 * torch.randn(x.shape, generator=gen)
        loss = nt_xent(encoder(augment(x, gen)), encoder(augment(x, gen)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % args["log_every"] == 0:
            print(f"[{step + 1}/{args['steps']}] loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.4f}")
    return encoder


def main():
    encoder = train({"seed": 7, "lr": 1.0, "steps": 60, "batch": 64, "log_every": 20})
    for name, p in encoder.named_parameters():
        print(f"{name:18s} norm {p.norm().item():.4f}")
    return encoder


if __name__ == "__main__":
    main()
