"""BYOL with a frozen target network that runs in training mode and follows the online one."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(d_in, d_hidden, d_out):
    return nn.Sequential(nn.Linear(d_in, d_hidden), nn.BatchNorm1d(d_hidden), nn.ReLU(inplace=True), nn.Linear(d_hidden, d_out))


class BYOL(nn.Module):
    def __init__(self, dim=12, hidden=32, proj=8, tau=0.97):
        super().__init__()
        self.online = nn.Sequential(mlp(dim, hidden, hidden), mlp(hidden, hidden, proj))
        self.predictor = mlp(proj, hidden, proj)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False
        self.base_tau = self.tau = tau

    @torch.no_grad()
    def update_target(self, step, total):
        self.tau = 1 - (1 - self.base_tau) * (math.cos(math.pi * step / total) + 1) / 2
        for online, target in zip(self.online.parameters(), self.target.parameters()):
            target.data.mul_(self.tau).add_(online.data, alpha=1 - self.tau)

    def regression(self, p, z):
        return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1)

    def forward(self, v1, v2):
        p1, p2 = self.predictor(self.online(v1)), self.predictor(self.online(v2))
        with torch.no_grad():
            z1, z2 = self.target(v1), self.target(v2)
        return (self.regression(p1, z2) + self.regression(p2, z1)).mean()


def views(x, gen):
    return [x + 0.4 * torch.randn(x.shape, generator=gen) for _ in range(2)]


@torch.no_grad()
def probe(model, x, y):
    was_training = model.training
    model.eval()
    h = F.normalize(model.online[0](x), dim=1)
    model.train(was_training)
    sim = h @ h.t()
    sim.fill_diagonal_(-1)
    return (y[sim.argmax(1)] == y).float().mean().item()


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    y = torch.randint(0, 5, (256,), generator=gen)
    x = torch.randn(5, 12, generator=gen)[y] + 0.5 * torch.randn(256, 12, generator=gen)
    model = BYOL()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    steps, done = 8 * 4, 0
    for epoch in range(8):
        model.train()
        for idx in torch.randperm(len(x)).split(64):
            loss = model(*views(x[idx], gen))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            model.update_target(done, steps)
            done += 1
        if epoch % 3 == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f} nearest neighbour acc {probe(model, x, y):.3f}")
    return probe(model, x, y)


if __name__ == "__main__":
    main()
