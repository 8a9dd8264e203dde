"""Loops whose frozen part is set to evaluation once, and back with the whole model."""

from __future__ import annotations

import torch
from torch import nn

from tests.auditing.loops.bank import buggy, clean


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


class WithHead(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


def trained_encoder(steps=30):
    model = WithHead(Encoder())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        update(optimizer, model)
    return model.encoder


def update(optimizer, model):
    optimizer.zero_grad()
    model(3 * torch.randn(6, 4) + 1).square().mean().backward()
    optimizer.step()


def freeze(module):
    module.requires_grad_(False)
    return module.eval()


@buggy("GCS409")
def backbone_back_in_training_mode():
    model = WithHead(freeze(trained_encoder()))
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
    for _ in range(3):
        model.train()  # <- here
        for _ in range(4):
            update(optimizer, model)


@buggy("GCS409")
def norms_frozen_by_themselves_in_an_agent():
    class Agent:
        def __init__(self, encoder):
            self.policy = WithHead(encoder.requires_grad_(False))
            for module in encoder.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
            self.optimizer = torch.optim.Adam(self.policy.head.parameters())

        def learn(self):
            self.policy.train()  # <- here
            for _ in range(10):
                update(self.optimizer, self.policy)

    Agent(trained_encoder(5)).learn()


@buggy("GCS409")
def teacher_part_of_a_distillation():
    class Distilled(nn.Module):
        def __init__(self, teacher):
            super().__init__()
            self.teacher, self.student = freeze(teacher), WithHead(Encoder())

        def forward(self, x):
            return (self.student.encoder(x) - self.teacher(x)).square().mean()

    model = Distilled(trained_encoder())
    optimizer = torch.optim.AdamW(model.student.encoder.parameters())
    for _ in range(12):
        model.train()  # <- here
        optimizer.zero_grad()
        model(torch.randn(6, 4)).backward()
        optimizer.step()


@clean
def backbone_set_to_evaluation_after_each_train():
    model = WithHead(freeze(trained_encoder()))
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
    for _ in range(3):
        model.train()
        model.encoder.eval()
        for _ in range(4):
            update(optimizer, model)


@buggy("GCS409")
def whole_model_evaluated_before_it_is_frozen():
    model = WithHead(trained_encoder())
    for _ in range(2):
        model.eval()
        with torch.no_grad():
            model(torch.randn(6, 4))
        model.train()  # <- here
    model.encoder.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
    for _ in range(12):
        update(optimizer, model)
