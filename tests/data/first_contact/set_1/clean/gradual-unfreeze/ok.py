"""Gradual unfreezing with discriminative rates (as in ULMFiT): groups are added as layers are unfrozen."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {"seed": 1, "epochs": 8, "batch_size": 32, "lr": 4e-3, "decay": 0.6, "unfreeze_every": 2}


class Encoder(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        self.embed = nn.Linear(12, width)
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)])

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = h + layer(h)
        return h


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


class GradualUnfreezing:
    def __init__(self, model, optimizer, cfg):
        self.optimizer, self.cfg = optimizer, cfg
        self.pending = list(model.encoder.layers)[::-1] + [model.encoder.embed]
        self.depth = 0
        for p in model.encoder.parameters():
            p.requires_grad_(False)

    def on_epoch_start(self, epoch):
        if epoch == 0 or epoch % self.cfg["unfreeze_every"] or not self.pending:
            return
        module = self.pending.pop(0)
        self.depth += 1
        params = list(module.parameters())
        for p in params:
            p.requires_grad_(True)
        lr = self.cfg["lr"] * self.cfg["decay"] ** self.depth
        self.optimizer.add_param_group({"params": params, "lr": lr})


def set_rates(optimizer, base, epoch, epochs):
    for group in optimizer.param_groups:
        start = group.setdefault("start_lr", group["lr"])
        group["lr"] = start * (1 - 0.7 * epoch / epochs)


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    x = torch.randn(n, 12, generator=g)
    return x, (torch.tanh(x) @ w + 0.3 * torch.randn(n, 4, generator=g)).argmax(1)


def main(cfg=CFG):
    torch.manual_seed(cfg["seed"])
    model = Model()
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=cfg["lr"])
    callback = GradualUnfreezing(model, optimizer, cfg)
    train, val = make_data(384, 1), make_data(192, 2)
    for epoch in range(cfg["epochs"]):
        callback.on_epoch_start(epoch)
        set_rates(optimizer, cfg["lr"], epoch, cfg["epochs"])
        model.train()
        for idx in torch.randperm(len(train[0])).split(cfg["batch_size"]):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train[0][idx]), train[1][idx])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            acc = (model(val[0]).argmax(1) == val[1]).float().mean().item()
        if epoch % 2 == 1:
            print(f"epoch {epoch} groups {len(optimizer.param_groups)} loss {loss.item():.4f} acc {acc:.3f}")
    return acc


if __name__ == "__main__":
    main()
