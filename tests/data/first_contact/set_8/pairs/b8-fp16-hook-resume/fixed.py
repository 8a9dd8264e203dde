"""A hook-driven runner: train, save, then resume in reduced precision with float32 copies of the weights."""
import copy
import io

import torch
import torch.nn.functional as F
from torch import nn


class Hook:
    def before_run(self, runner):
        pass

    def after_train_iter(self, runner):
        pass

    def after_train_epoch(self, runner):
        pass


class OptimizerHook(Hook):
    def __init__(self, max_norm=5.0):
        self.max_norm = max_norm

    def after_train_iter(self, runner):
        runner.optimizer.zero_grad()
        runner.outputs["loss"].backward()
        nn.utils.clip_grad_norm_(runner.model.parameters(), self.max_norm)
        runner.optimizer.step()


class LowPrecisionOptimizerHook(OptimizerHook):
    def __init__(self, max_norm=5.0, loss_scale=64.0):
        super().__init__(max_norm)
        self.loss_scale = loss_scale

    def before_run(self, runner):
        old_groups = runner.optimizer.param_groups
        runner.optimizer.param_groups = copy.deepcopy(old_groups)
        for old_group, group in zip(old_groups, runner.optimizer.param_groups):
            for param, weight in zip(old_group["params"], group["params"]):
                if param in runner.optimizer.state:
                    runner.optimizer.state[weight] = runner.optimizer.state.pop(param)
        runner.model.to(torch.bfloat16)

    def copy_grads(self, model, master_weights):
        for weight, param in zip(master_weights, model.parameters()):
            if param.grad is not None:
                weight.grad = param.grad.float() / self.loss_scale

    @torch.no_grad()
    def copy_params(self, model, master_weights):
        for weight, param in zip(master_weights, model.parameters()):
            param.copy_(weight)

    def after_train_iter(self, runner):
        runner.model.zero_grad()
        runner.optimizer.zero_grad()
        (runner.outputs["loss"] * self.loss_scale).backward()
        master_weights = [p for group in runner.optimizer.param_groups for p in group["params"]]
        self.copy_grads(runner.model, master_weights)
        nn.utils.clip_grad_norm_(master_weights, self.max_norm)
        runner.optimizer.step()
        self.copy_params(runner.model, master_weights)


class LoggerHook(Hook):
    def __init__(self):
        self.values = []

    def after_train_iter(self, runner):
        self.values.append(runner.outputs["loss"].item())

    def after_train_epoch(self, runner):
        window = self.values[-len(runner.batches):]
        print(f"epoch {runner.epoch} loss {sum(window) / len(window):.4f}")


class Runner:
    def __init__(self, model, optimizer, batches, hooks):
        self.model = model
        self.optimizer = optimizer
        self.batches = batches
        self.hooks = hooks
        self.epoch = 0

    def call_hook(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)

    def train_iter(self, batch):
        inputs, labels = batch
        dtype = next(self.model.parameters()).dtype
        logits = self.model(inputs.to(dtype))
        self.outputs = {"loss": F.cross_entropy(logits.float(), labels)}

    def run(self, max_epochs):
        self.call_hook("before_run")
        while self.epoch < max_epochs:
            self.model.train()
            for batch in self.batches:
                self.train_iter(batch)
                self.call_hook("after_train_iter")
            self.epoch += 1
            self.call_hook("after_train_epoch")

    def save_checkpoint(self, file):
        torch.save(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}, file
        )

    def resume(self, file):
        checkpoint = torch.load(file)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.epoch = checkpoint["epoch"]


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 4)
    )


def build_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.99))


def build_batches(n_batches=12, batch_size=16):
    g = torch.Generator().manual_seed(5)
    prototypes = torch.randn(4, 1, 8, 8, generator=g)
    batches = []
    for _ in range(n_batches):
        labels = torch.randint(0, 4, (batch_size,), generator=g)
        images = 0.5 * prototypes[labels] + torch.randn(batch_size, 1, 8, 8, generator=g)
        batches.append((images, labels))
    return batches


def main():
    torch.manual_seed(5)
    batches = build_batches()
    model = build_model()
    first = Runner(model, build_optimizer(model), batches, [OptimizerHook(), LoggerHook()])
    first.run(max_epochs=3)
    file = io.BytesIO()
    first.save_checkpoint(file)
    file.seek(0)

    model = build_model()
    second = Runner(model, build_optimizer(model), batches, [LowPrecisionOptimizerHook(), LoggerHook()])
    second.resume(file)
    second.run(max_epochs=6)
    return second


if __name__ == "__main__":
    main()
