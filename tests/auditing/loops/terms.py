"""Losses of several terms, some of which carry no gradient."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from tests.auditing.loops.bank import buggy, clean, data, mse, setup


def batches(count=5):
    for _ in range(count):
        yield torch.randn(6, 4), torch.randn(6, 1)


def wide(outputs=4):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@buggy("GCS411")
def penalty_as_a_number():
    model, optimizer = setup()
    for x, y in batches():
        out = model(x)
        penalty = out.abs().mean().item()  # <- here
        update(optimizer, F.mse_loss(out, y) + 0.1 * penalty)


@buggy("GCS411")
def penalty_added_in_place():
    model, optimizer = setup()
    for x, y in batches():
        out = model(x)
        loss = F.mse_loss(out, y)
        loss += 0.3 * out.detach().abs().mean()  # <- here
        update(optimizer, loss)


@buggy("GCS411")
def gradient_penalty_without_a_graph():
    critic, optimizer = setup()
    for x, _ in batches():
        mixed = (0.5 * x + 0.5 * torch.randn(6, 4)).requires_grad_()
        slope = torch.autograd.grad(critic(mixed).sum(), mixed)[0]  # <- here
        penalty = ((slope.norm(2, 1) - 1) ** 2).mean()
        update(optimizer, critic(torch.randn(6, 4)).mean() - critic(x).mean() + 10 * penalty)


@buggy("GCS411")
def divergence_without_recording():
    model, optimizer = wide()
    for x, y in batches():
        mean, log_var = model(x).chunk(2, 1)
        fit = F.mse_loss(mean + log_var, y.expand(6, 2))
        with torch.no_grad():  # <- here
            divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
        update(optimizer, fit + divergence)


class KeepsItsPenalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        self.penalty = None

    def forward(self, x):
        hidden = self.body(x).tanh()
        self.penalty = self.size(hidden)
        return self.head(hidden)

    def size(self, hidden):
        return hidden.data.pow(2).mean()


@buggy("GCS411")
def penalty_kept_by_the_model():
    model = KeepsItsPenalty()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches():
        update(optimizer, F.mse_loss(model(x), y) + 0.1 * model.penalty)


@buggy("GCS411")
def list_made_a_tensor():
    model, optimizer = setup()
    for x, y in batches():
        out, penalties = model(x), []
        for row in out:
            penalties.append(torch.relu(row - 1).sum())  # noqa: PERF401 - as people write it
        penalty = torch.tensor(penalties).mean()  # <- here
        update(optimizer, F.mse_loss(out, y) + penalty)


@buggy("GCS411")
def count_in_a_dict():
    model, optimizer = setup()
    for x, y in batches():
        out, losses = model(x), {}
        losses["fit"] = F.mse_loss(out, y)
        losses["active"] = (out > 0.5).float().mean()  # <- here
        update(optimizer, sum(losses.values()))


@buggy("GCS411")
def entropy_of_a_copy():
    model, optimizer = wide()
    for x, y in batches():
        policy = Categorical(logits=model(x))
        gain = (policy.log_prob(policy.sample()) * y.squeeze(1)).mean()
        entropy = Categorical(logits=model(x).detach()).entropy().mean()  # <- here
        update(optimizer, -gain - 0.01 * entropy)


@buggy("GCS411")
def term_of_a_list():
    model, optimizer = setup()
    for x, y in batches():
        out = model(x)
        terms = [F.mse_loss(out, y), out.std().detach()]  # <- here
        update(optimizer, torch.stack(terms).sum())


@buggy("GCS411")
def overlap_of_a_mask():
    model, optimizer = wide()

    def overlap(out, wanted):
        mask = (out > 0).float()  # <- here
        return 1 - 2 * (mask * wanted).sum() / (mask.sum() + wanted.sum() + 1)

    for x, _ in batches():
        wanted = (x > 0).float()
        out = model(x)
        update(optimizer, F.binary_cross_entropy_with_logits(out, wanted) + overlap(out, wanted))


class Smoothness(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = 0.5

    def edges(self, out):
        return torch.as_tensor(np.diff(out.detach().numpy()))  # <- here

    def forward(self, out, wanted):
        fit = F.l1_loss(out, wanted)
        return fit + self.weight * F.l1_loss(self.edges(out), self.edges(wanted)), fit.item()


@buggy("GCS411")
def criterion_through_numpy():
    model, optimizer = wide()
    criterion = Smoothness()
    for x, _ in batches():
        loss, _ = criterion(model(x), x)
        update(optimizer, loss)


@buggy("GCS411")
def weights_through_data():
    model, optimizer = setup()
    for x, y in batches():
        size = torch.tensor(0.0)
        for parameter in model.parameters():
            size = size + parameter.data.abs().sum()  # <- here
        update(optimizer, F.mse_loss(model(x), y) + 1e-3 * size)


@buggy("GCS411")
def rate_that_is_rounded():
    model, optimizer = setup()
    for x, y in batches():
        out = model(x)
        rate = torch.round(out).abs().mean()  # <- here
        update(optimizer, F.mse_loss(out, y) + 0.1 * rate)


# Correct ones.


@clean
def numbers_are_added():
    model, optimizer = setup()
    for number, (x, y) in enumerate(batches()):
        loss = 0
        for weight, part in ((1.0, F.mse_loss), (0.5, F.l1_loss)):
            loss += weight * part(model(x), y)
        if number > 2:
            loss = loss + min(1.0, float(number) / 3) * model(x).pow(2).mean()
        update(optimizer, loss + 0.5 * math.log(2 * math.pi))


@clean
def terms_are_logged():
    model, optimizer = setup()
    total, log = 0.0, {}
    for x, y in batches():
        fit, size = F.mse_loss(model(x), y), model(x).abs().mean()
        loss = fit + 0.1 * size
        update(optimizer, loss)
        total, log = total + loss.detach(), {"fit": fit.item(), "size": size.detach()}
    assert total > 0
    assert log


@clean
def target_of_a_target_network():
    model, optimizer = setup()
    target = copy.deepcopy(model)
    for x, y in batches():
        with torch.no_grad():
            wanted = y + 0.9 * target(x)
        delta = y + 0.9 * model(x).detach() - model(x)
        update(optimizer, F.mse_loss(model(x), wanted) + 0.1 * delta.pow(2).mean())


@clean
def loss_straight_through():
    model, optimizer = wide()
    for x, _ in batches():
        out = model(x)
        soft, hard = F.mse_loss(out, x), (out > 0).float().mean()
        rounded = out + (out.round() - out).detach()
        update(optimizer, soft + (hard - soft).detach() + rounded.mean())


@clean
def codebook_and_commitment():
    encoder, codes = nn.Linear(4, 2), nn.Embedding(5, 2)
    optimizer = torch.optim.SGD([*encoder.parameters(), *codes.parameters()], lr=0.01)
    for x, _ in batches():
        z = encoder(x)
        nearest = codes(torch.cdist(z, codes.weight).argmin(1))
        commitment, codebook = F.mse_loss(z, nearest.detach()), F.mse_loss(nearest, z.detach())
        update(optimizer, codebook + 0.25 * commitment)


@clean
def factors_are_detached():
    model, optimizer = wide(2)
    for x, y in batches():
        out = model(x)
        fit, size = F.mse_loss(out[:, :1], y), out.abs().mean()
        weight = out.std().detach()
        update(
            optimizer, weight * fit + (1 - weight) * size + fit / fit.detach() + size / size.item()
        )


@clean
def multiplier_and_constraint():
    model, _ = setup()
    multiplier = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), multiplier], lr=0.01)
    for x, y in batches():
        out = model(x)
        over = out.pow(2).mean() - 0.1
        loss = F.mse_loss(out, y) + multiplier.detach() * over - multiplier * over.detach()
        update(optimizer, loss)


@clean
def divergence_from_a_constant():
    model, optimizer = wide()
    for x, y in batches():
        log_old = model(x).log_softmax(1).detach()
        log_new = model(x + 0.1).log_softmax(1)
        divergence = (log_old.exp() * (log_old - log_new)).sum(1).mean()
        gap = (log_new[:, 0] - log_old[:, 0]).mean()
        update(optimizer, (log_new[:, 0] * y.squeeze(1)).mean() + divergence + 0.1 * gap)


@clean
def term_with_a_backward_of_its_own():
    model, optimizer = setup()
    for x, y in batches():
        optimizer.zero_grad()
        first = F.mse_loss(model(x), y)
        first.backward()
        total = first.detach() + model(x).abs().mean()
        total.backward()
        optimizer.step()


@clean
def load_of_experts():
    gate, optimizer = wide()
    for x, _ in batches():
        share = gate(x).softmax(1)
        chosen = F.one_hot(share.argmax(1), 4).float()
        balance = 4 * (chosen.mean(0) * share.mean(0)).sum()
        update(optimizer, F.mse_loss(share * chosen, x) + 0.01 * balance)


@clean
def gradient_penalty_with_a_graph():
    critic, optimizer = setup()
    for x, _ in batches():
        mixed = (0.5 * x + 0.5 * torch.randn(6, 4)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=critic.training)
        penalty = ((slope.norm(2, 1) - 1) ** 2).mean()
        update(optimizer, critic(torch.randn(6, 4)).mean() - critic(x).mean() + 10 * penalty)


@clean
def probe_on_detached_features():
    body, probe = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *probe.parameters()], lr=0.01)
    for x, y in batches():
        features = body(x)
        update(optimizer, F.mse_loss(features, x) + F.mse_loss(probe(features.detach()), y))


@clean
def multiplied_by_zero():
    model, optimizer = setup()
    for x, y in batches():
        out = model(x)
        update(optimizer, F.mse_loss(out, y) + 0.0 * out.detach().mean())


class Values(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, x, action):
        return self.layer(torch.cat([x, action], 1))


def entropy_of_actions(actor, x):
    """Return actions of a stochastic actor, and their log-probabilities."""
    policy = torch.distributions.Normal(actor(x), 1.0)
    action = policy.rsample()
    return action, policy.log_prob(action).sum(-1, keepdim=True)


@buggy("GCS411")
def values_of_the_actor_detached_element_by_element():
    actor, optimizer = setup()
    first, second = Values(), Values()
    for x, _ in batches():
        action, log_prob = entropy_of_actions(actor, x)
        value = torch.min(first(x, action), second(x, action))
        update(optimizer, (0.2 * log_prob - value.detach()).mean())  # <- here


@buggy("GCS411")
def reward_of_a_generator_without_recording():
    generator, optimizer = setup()
    reward = nn.Linear(1, 1)
    for x, _ in batches():
        sample = generator(x)
        smooth = sample.square()
        gain = reward(sample).tanh().detach()  # <- here
        update(optimizer, (0.1 * smooth - gain).mean())


@buggy("GCS411")
def margin_of_detached_maximum():
    model, optimizer = wide()
    for x, _ in batches():
        logits = model(x)
        spread = F.softplus(logits).sum(1)
        best = torch.max(logits[:, 0], logits[:, 1])
        update(optimizer, (spread - best.detach()).mean())  # <- here


@clean
def values_of_the_actor_with_their_graph():
    actor, optimizer = setup()
    first, second = (Values().requires_grad_(False) for _ in range(2))
    for x, _ in batches():
        action, log_prob = entropy_of_actions(actor, x)
        value = torch.min(first(x, action), second(x, action))
        update(optimizer, (0.2 * log_prob - value).mean())


@clean
def divergence_from_the_old_policy():
    actor, optimizer = setup()
    for x, _ in batches():
        _, log_prob = entropy_of_actions(actor, x)
        update(optimizer, (log_prob - log_prob.detach()).mean() + log_prob.square().mean())


class Routed(nn.Module):
    """A layer that returns its output, how even its choices are, and the choices."""

    def __init__(self, *, soft):
        super().__init__()
        self.soft = soft
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def evenness(self, share):
        if self.soft:
            return (share.mean(0) - 1 / 3).square().sum()
        chosen = F.one_hot(share.argmax(-1), 3).float()  # <- here
        return (chosen.mean(0) - 1 / 3).square().sum()

    def forward(self, x):
        share = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out = out + share[:, number : number + 1] * expert(x)
        return x + out, self.evenness(share), share.argmax(-1)


class RoutedLayers(nn.Module):
    def __init__(self, *, soft):
        super().__init__()
        self.layers = self.in_order([Routed(soft=soft) for _ in range(2)])
        self.head = nn.Linear(4, 1)

    def in_order(self, layers):
        return nn.ModuleList(layers)

    def each(self):
        return self.layers

    def forward(self, x):
        uneven, routes = 0.0, []
        for layer in self.each():
            x, term, route = layer(x)
            uneven = uneven + term
            routes.append(route)
        return self.head(x), uneven / len(self.layers), routes


class NamedLayers(RoutedLayers):
    def in_order(self, layers):
        return nn.ModuleDict({f"layer{number}": each for number, each in enumerate(layers)})

    def each(self):
        return self.layers.values()


def train_routed(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches():
        out, uneven, _ = model(x)
        fit = F.mse_loss(out, y)
        update(optimizer, fit + 0.5 * uneven)


@buggy("GCS411")
def term_of_layers_in_a_list():
    train_routed(RoutedLayers(soft=False))


@buggy("GCS411")
def term_of_layers_in_a_dict():
    train_routed(NamedLayers(soft=False))


@clean
def term_of_layers_that_carries_a_gradient():
    train_routed(RoutedLayers(soft=True))
    train_routed(NamedLayers(soft=True))


class Staged(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.high(self.low(x).tanh()).tanh())


class Tap:
    def __init__(self, model, names=("low", "high")):
        self.kept = {}
        for name in names:
            getattr(model, name).register_forward_hook(self.keep(name))

    def keep(self, name):
        def hook(_module, _args, output):
            self.kept[name] = output

        return hook


def distilled_by_features(run):
    """Train a student by the features of a teacher, which ``run`` lets both compute."""
    student, teacher = Staged(), Staged().requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    mine, theirs = Tap(student), Tap(teacher)
    for x, y in batches():
        fit = F.mse_loss(student(x), y)
        mine.kept.clear()
        run(student, teacher, x)
        far = 0.0
        for name in ("low", "high"):
            far = far + F.mse_loss(mine.kept.pop(name), theirs.kept.pop(name))
        update(optimizer, fit + far)


@buggy("GCS411")
def features_that_hooks_kept_without_recording():
    def run(student, teacher, x):
        with torch.no_grad():  # <- here
            teacher(x)
            student(x)

    distilled_by_features(run)


@clean
def features_that_hooks_kept_with_their_graph():
    def run(student, teacher, x):
        with torch.no_grad():
            teacher(x)
        student(x)

    distilled_by_features(run)


@clean
def features_of_the_teacher_alone_are_kept_without_recording():
    student, teacher = Staged(), Staged()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    theirs = Tap(teacher)
    for x, y in batches():
        with torch.no_grad():
            teacher(x)
        out = student(x)
        matched = F.mse_loss(student.low(x), theirs.kept.pop("low"))
        update(optimizer, F.mse_loss(out, y) + matched)


def normalized_net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


@buggy("GCS411")
def penalty_of_the_data_of_some_layers():
    model = normalized_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def scales():
        return {k: m for k, m in model.named_modules() if isinstance(m, nn.BatchNorm1d)}

    for x, y in data():
        optimizer.zero_grad()
        sparsity = 0
        for layer in scales().values():
            sparsity += layer.weight.data.abs().sum()  # <- here
        (mse(model, x, y) + 0.1 * sparsity).backward()
        optimizer.step()


@clean
def penalty_of_some_layers_and_the_number_of_others():
    model = normalized_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in data():
        optimizer.zero_grad()
        sparsity, others = 0, 0
        for layer in model.modules():
            if isinstance(layer, (nn.BatchNorm1d, nn.LayerNorm)):
                sparsity += layer.weight.abs().sum()
            elif isinstance(layer, nn.Linear):
                others += layer.weight.data.numel()
        (mse(model, x, y) + 0.1 * sparsity + others).backward()
        optimizer.step()


@clean
def size_of_the_weights_is_shown_and_not_trained():
    model = normalized_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in data():
        optimizer.zero_grad()
        sizes = [m.weight.data.norm() for m in model.children() if isinstance(m, nn.Linear)]
        loss = mse(model, x, y)
        loss.backward()
        optimizer.step()
        assert sum(sizes) >= 0
