"""Image classifier trained with sharpness-aware minimisation inside a Lookahead wrapper."""
import torch
import torch.nn.functional as F
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([g.norm() for g in grads]).norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p].pop("old_p")
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure):
        closure = torch.enable_grad()(closure)
        self.first_step()
        closure()
        self.second_step()


class Lookahead:
    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.counter = 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in optimizer.param_groups]

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self, closure):
        self.optimizer.step(closure)
        self.counter += 1
        if self.counter % self.k == 0:
            self.synchronise()

    @torch.no_grad()
    def synchronise(self):
        for group, slow in zip(self.optimizer.param_groups, self.slow):
            for p, q in zip(group["params"], slow):
                q.add_(p.detach() - q, alpha=self.alpha)
                p.copy_(q)


def set_statistics(model, enabled):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            if enabled:
                module.momentum = module.backup_momentum
            else:
                module.backup_momentum = module.momentum
                module.momentum = 0.0


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 4),
    )


def make_images(n, seed):
    prototypes = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=g)
    return 0.8 * prototypes[labels] + torch.randn(n, 1, 8, 8, generator=g), labels


def evaluate(model, images, labels):
    model.eval()
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return accuracy


def main(epochs=5, batch_size=32):
    torch.manual_seed(0)
    images, labels = make_images(320, 1)
    held_images, held_labels = make_images(200, 2)
    model = build_model()
    optimizer = Lookahead(SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9))
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(images)).split(batch_size):
            x, y = images[index], labels[index]

            def closure():
                set_statistics(model, False)
                F.cross_entropy(model(x), y).backward()
                set_statistics(model, True)

            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step(closure)
            total += loss.item() * len(index) / len(images)
        print(f"epoch {epoch} loss {total:.4f} held out {evaluate(model, held_images, held_labels):.3f}")
    return model


if __name__ == "__main__":
    main()
