"""Meta-training of a 1-D super-resolution network that adapts itself to an unknown down-sampling."""
import copy

import torch
import torch.nn.functional as F
from torch import nn


class SRNet(nn.Module):
    def __init__(self, scale=2, width=16):
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 5, padding=2), nn.ReLU(), nn.Conv1d(width, width, 3, padding=1), nn.ReLU()
        )
        self.tail = nn.Conv1d(width, scale, 3, padding=1)

    def forward(self, lr):
        out = self.tail(self.body(lr))
        return out.transpose(1, 2).reshape(lr.shape[0], 1, -1)


class DownscalingEstimator(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, width, 5, padding=2), nn.ReLU(), nn.Conv1d(width, 1, 4, 2, padding=1))

    def forward(self, signal):
        return self.net(signal)


def sample_signal(batch, length, generator):
    t = torch.linspace(0, 6.28, length)
    freq = torch.rand(batch, 3, 1, generator=generator) * 3 + 1
    phase = torch.rand(batch, 3, 1, generator=generator) * 6.28
    return torch.sin(freq * t + phase).mean(1, keepdim=True)


def sample_task(generator, batch=4, length=64):
    width = int(torch.randint(1, 5, (1,), generator=generator))
    gain = 0.6 + 0.8 * torch.rand(1, generator=generator)
    kernel = torch.ones(1, 1, 2 * width) / (2 * width) * gain
    hr = sample_signal(batch, length, generator)
    lr = F.conv1d(F.pad(hr, (width - 1, width)), kernel)[:, :, ::2]
    slr = F.conv1d(F.pad(lr, (width - 1, width)), kernel)[:, :, ::2]
    return hr, lr, slr


class MetaTrainer:
    def __init__(self, model, est_model, inner_lr=1e-2, outer_lr=4e-3, inner_steps=2, tasks_per_step=4):
        self.model = model
        self.est_model = est_model
        self.inner_lr = inner_lr
        self.inner_steps = inner_steps
        self.tasks_per_step = tasks_per_step
        self.outer = torch.optim.Adam([*model.parameters(), *est_model.parameters()], lr=outer_lr)

    def adapt(self, lr, slr):
        modelcp = copy.deepcopy(self.model)
        est_modelcp = copy.deepcopy(self.est_model)
        optim_params = [
            {"params": modelcp.parameters(), "lr": self.inner_lr},
            {"params": est_modelcp.parameters(), "lr": self.inner_lr},
        ]
        inner_optimizer = torch.optim.SGD(optim_params, lr=self.inner_lr, momentum=0.9)
        for _ in range(self.inner_steps):
            inner_optimizer.zero_grad()
            slr_hat = self.est_model(lr)
            restored = self.model(slr_hat)
            loss = F.l1_loss(restored, lr) + F.l1_loss(slr_hat, slr)
            loss.backward()
            inner_optimizer.step()
        inner_optimizer.zero_grad()
        return modelcp, est_modelcp

    def meta_step(self, generator):
        self.outer.zero_grad()
        total = 0.0
        for _ in range(self.tasks_per_step):
            hr, lr, slr = sample_task(generator)
            modelcp, est_modelcp = self.adapt(lr, slr)
            loss = F.l1_loss(modelcp(lr), hr) + 0.5 * F.l1_loss(est_modelcp(hr), lr)
            loss.backward()
            for net, clone in ((self.model, modelcp), (self.est_model, est_modelcp)):
                for p, q in zip(net.parameters(), clone.parameters()):
                    update = q.grad / self.tasks_per_step
                    p.grad = update if p.grad is None else p.grad + update
            total += loss.item() / self.tasks_per_step
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.outer.step()
        return total

    def evaluate(self, n_tasks=12, seed=77):
        generator = torch.Generator().manual_seed(seed)
        before = after = 0.0
        for _ in range(n_tasks):
            hr, lr, slr = sample_task(generator)
            modelcp, _ = self.adapt(lr, slr)
            with torch.no_grad():
                before += F.l1_loss(self.model(lr), hr).item() / n_tasks
                after += F.l1_loss(modelcp(lr), hr).item() / n_tasks
        return before, after


def main(steps=60):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    trainer = MetaTrainer(SRNet(), DownscalingEstimator())
    for step in range(1, steps + 1):
        loss = trainer.meta_step(generator)
        if step % 15 == 0:
            print(f"step {step} query loss {loss:.4f}")
    before, after = trainer.evaluate()
    print(f"error before adaptation {before:.4f} after {after:.4f}")
    return before, after


if __name__ == "__main__":
    main()
