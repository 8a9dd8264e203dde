"""Correct loops that train parts of models, or models whose parts vary."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn
from torch.nn.utils import prune
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.auditing.loops.bank import clean


def fit(model, parameters=None, steps=6, rate=0.01):
    kept = [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters
    optimizer = torch.optim.Adam(kept, lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 1)).backward()
        optimizer.step()
    return optimizer


def base():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


@clean
def frozen_backbone_with_a_new_head():
    model = base()
    for p in model.parameters():
        p.requires_grad = False
    model[4] = nn.Linear(8, 1)
    fit(model)


@clean
def frozen_in_eval_mode_under_no_grad():
    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).requires_grad_(False)
            self.head = nn.Linear(8, 1)

        def train(self, mode=True):
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, x):
            with torch.no_grad():
                features = self.backbone(x)
            return self.head(features)

    model = Probe().train()
    fit(model, list(model.head.parameters()))


@clean
def thawed_layer_by_layer():
    model = base().requires_grad_(False)
    model[4].requires_grad_(True)
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.01)
    for epoch, layer in enumerate((None, model[2], model[0])):
        if layer is not None:
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": layer.parameters(), "lr": 0.01 / 3**epoch})
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()


@clean
def low_rank_adapters_in_wrapped_layers():
    class Adapted(nn.Module):
        def __init__(self, layer, rank=2):
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(rank, layer.in_features) / 10)
            self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

        def forward(self, x):
            return self.layer(x) + x @ self.down.T @ self.up.T

    model = base()
    for i in (0, 2):
        model[i] = Adapted(model[i])
    model[4].requires_grad_(False)
    fit(model)


@clean
def only_biases():
    model = base()
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    fit(model)


@clean
def soft_prompt():
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).requires_grad_(False)
    prompt, head = nn.Parameter(torch.randn(1, 2, 4)), nn.Linear(4, 1)
    optimizer = torch.optim.AdamW([prompt, *head.parameters()])
    for _ in range(6):
        x = torch.cat([prompt.expand(3, -1, -1), torch.randn(3, 4, 4)], 1)
        optimizer.zero_grad()
        head(model(x).mean(1)).square().mean().backward()
        optimizer.step()


@clean
def experts_some_of_which_rest():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 6)
            self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(6))

        def forward(self, x):
            chance, index = self.gate(x).softmax(1).max(1)
            out = x.new_zeros(len(x), 1)
            for number, expert in enumerate(self.experts):
                mine = index == number
                if mine.any():
                    out[mine] = expert(x[mine]) * chance[mine, None]
            return out

    fit(Mixture(), steps=8)


@clean
def layers_dropped_at_random():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            for block in self.blocks:
                if not self.training or random.random() > 0.5:
                    x = x + F.relu(block(x))
            return self.head(x)

    fit(Deep(), steps=8)


@clean
def curriculum_of_growing_depth():
    blocks, head = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.01)
    for depth in (1, 2, 3):
        for _ in range(3):
            x = torch.randn(6, 4)
            for block in blocks[:depth]:
                x = torch.tanh(block(x))
            optimizer.zero_grad()
            head(x).square().mean().backward()
            optimizer.step()


@clean
def growing_by_new_optimizers():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    head = nn.Linear(4, 1)
    for _ in range(3):
        model.append(nn.Linear(4, 4))
        optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
        for _ in range(3):
            optimizer.zero_grad()
            head(model(torch.randn(6, 4))).square().mean().backward()
            optimizer.step()


@clean
def one_head_for_each_task_in_turn():
    trunk = nn.Linear(4, 8)
    heads = nn.ModuleDict({"a": nn.Linear(8, 1), "b": nn.Linear(8, 2), "c": nn.Linear(8, 3)})
    optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()])
    for step in range(9):
        optimizer.zero_grad()
        heads["abc"[step % 3]](trunk(torch.randn(6, 4)).tanh()).square().mean().backward()
        optimizer.step()


@clean
def pipeline_of_two_models():
    first, second = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (first, second)]
    for _ in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        middle = first(torch.randn(6, 4))
        received = middle.detach().requires_grad_()
        second(received).square().mean().backward()
        middle.backward(received.grad)
        for optimizer in optimizers:
            optimizer.step()


@clean
def stages_trained_one_after_another():
    encoder = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    decoder, head = nn.Linear(6, 4), nn.Linear(6, 1)
    first = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for _ in range(4):
        x = torch.randn(6, 4)
        first.zero_grad()
        F.mse_loss(decoder(encoder(x)), x).backward()
        first.step()
    encoder.requires_grad_(False).eval()
    second = torch.optim.Adam(head.parameters())
    for _ in range(4):
        second.zero_grad()
        head(encoder(torch.randn(6, 4))).square().mean().backward()
        second.step()


@clean
def greedy_training_of_each_layer():
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)]
    optimizers = [torch.optim.Adam(layer.parameters()) for layer in layers]
    for _ in range(6):
        x = torch.randn(6, 4)
        for layer, optimizer in zip(layers, optimizers, strict=True):
            out = torch.relu(layer(x))
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
            x = out.detach()


@clean
def auxiliary_head_in_training_only():
    class WithHelper(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.main, self.helper = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

        def forward(self, x):
            hidden = torch.relu(self.stem(x))
            return (self.main(hidden), self.helper(hidden)) if self.training else self.main(hidden)

    model = WithHelper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        model.train()
        for _ in range(2):
            out, extra = model(torch.randn(6, 4))
            loss = out.square().mean() + 0.3 * extra.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.randn(6, 4))


@clean
def pruned_with_masks():
    layer = nn.Linear(4, 1)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    fit(layer)
    prune.remove(layer, "weight")


@clean
def checkpointed_without_reentry():
    class Saves(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
            self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.ReLU(inplace=True))

        def forward(self, x):
            return self.head(checkpoint(self.body, self.stem(x), use_reentrant=False))

    fit(Saves())


@clean
def checkpointed_with_reentry():
    class Saves(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
            self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.ReLU(inplace=True))

        def forward(self, x):
            return self.head(checkpoint(self.body, self.stem(x), use_reentrant=True))

    fit(Saves())


@clean
def checkpointed_in_segments_with_an_input_that_asks():
    body = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))
    head = nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
    for _ in range(5):
        x = torch.randn(6, 4, requires_grad=True)
        optimizer.zero_grad()
        head(checkpoint_sequential(body, 2, x, use_reentrant=True)).square().mean().backward()
        optimizer.step()


@clean
def a_term_that_starts_later():
    model, extra = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*model.parameters(), *extra.parameters()])
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    for step in range(10):
        x = torch.randn(6, 4)
        out = model(x)
        loss = F.mse_loss(out, x)
        if step >= 2:
            loss = loss + extra(out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
