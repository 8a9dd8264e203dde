"""Loops that train parameters in 16 bits: updates that rounding takes, and those that it leaves."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from tests.auditing.loops.bank import buggy, clean

STEPS = 40


def model_in(dtype):
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(dtype)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@buggy("GCS313")
def fine_tuned_in_bfloat16():
    model = model_in(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(STEPS):
        logits = model(torch.randn(8, 16).bfloat16()).float()
        update(optimizer, F.cross_entropy(logits, torch.randint(4, (8,))))


@buggy("GCS313")
def policy_in_half_precision():
    class Agent:
        def __init__(self):
            self.policy = model_in(torch.float16)
            self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=2e-6, eps=1e-4)

        def learn(self):
            log_prob = self.policy(torch.randn(8, 16).half()).float().log_softmax(1)
            update(self.optimizer, -(log_prob[:, 0] * torch.randn(8)).mean())

    agent = Agent()
    for _ in range(STEPS):
        agent.learn()


@buggy("GCS313")
def diffusion_with_a_schedule_in_bfloat16():
    model = nn.Linear(16, 16).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        noise = torch.randn(8, 16).bfloat16()
        update(optimizer, F.mse_loss(model(noise), noise))
        schedule.step()


@clean
def bfloat16_in_the_forward_alone():
    model = model_in(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(torch.randn(8, 16))
        update(optimizer, F.cross_entropy(logits.float(), torch.randint(4, (8,))))


@clean
def bfloat16_with_updates_of_its_size():
    model = model_in(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        logits = model(torch.randn(8, 16).bfloat16()).float()
        update(optimizer, F.cross_entropy(logits, torch.randint(4, (8,))))


class WithMaster(torch.optim.Optimizer):
    """Steps copies in float32, and gives the parameters their rounded values."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                master = state.setdefault("master", each.float())
                master -= group["lr"] * each.grad.float()
                each.copy_(master)


@clean
def copies_in_float32_beside_parameters_in_bfloat16():
    model = model_in(torch.bfloat16)
    optimizer = WithMaster(model.parameters(), 1e-4)
    for _ in range(STEPS):
        logits = model(torch.randn(8, 16).bfloat16()).float()
        update(optimizer, F.cross_entropy(logits, torch.randint(4, (8,))))
