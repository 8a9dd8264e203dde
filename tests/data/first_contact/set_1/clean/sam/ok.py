"""Sharpness-aware minimization: two forward/backward passes per update, weights perturbed in between."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        scale_by = self._grad_norm() + 1e-12
        for group in self.param_groups:
            scale = group["rho"] / scale_by
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError("call first_step and second_step")

    def _grad_norm(self):
        norms = [p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]
        return torch.stack(norms).norm()


def set_running_stats(model, enabled):
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            if not enabled:
                m.backup_momentum = m.momentum
                m.momentum = 0
            else:
                m.momentum = m.backup_momentum


def make_net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 4),
    )


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    protos = torch.randn(4, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    y = torch.randint(4, (n,), generator=g)
    return protos[y] * 0.6 + torch.randn(n, 1, 10, 10, generator=g), y


def main(seed=6, epochs=5, batch_size=32):
    torch.manual_seed(seed)
    model = make_net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.base_optimizer, 2, 0.5)
    train, val = make_data(256, 1), make_data(128, 2)
    for epoch in range(epochs):
        model.train()
        for idx in torch.randperm(len(train[0])).split(batch_size):
            x, y = train[0][idx], train[1][idx]
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            loss.backward()
            optimizer.first_step(zero_grad=True)

            set_running_stats(model, False)
            F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
            optimizer.second_step(zero_grad=True)
            set_running_stats(model, True)
        scheduler.step()
        model.eval()
        with torch.no_grad():
            acc = (model(val[0]).argmax(1) == val[1]).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.3f}")
    return acc


if __name__ == "__main__":
    main()
