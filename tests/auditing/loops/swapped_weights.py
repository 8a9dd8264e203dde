"""Weights that are replaced for an evaluation, and put back or not."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils import prune

from tests.auditing.loops.bank import buggy, clean


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


def evaluate(model):
    model.eval()
    with torch.no_grad():
        loss = model(torch.randn(8, 4)).square().mean().item()
    model.train()
    return loss


class Average:
    def __init__(self, model):
        self.model = model
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.backup = {}

    def update(self):
        for name, p in self.model.named_parameters():
            self.shadow[name].lerp_(p.detach(), 0.1)

    def apply(self):
        for name, p in self.model.named_parameters():
            self.backup[name] = p.detach().clone()
            p.data.copy_(self.shadow[name])  # <- here

    def restore(self):
        for name, p in self.model.named_parameters():
            p.data.copy_(self.backup[name])


@buggy("GCS316")
def average_that_is_not_taken_back():
    model = network()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(12):
        step(model, optimizer)
        average.update()
        if number % 3 == 2:
            average.apply()
            evaluate(model)


@buggy("GCS316")
def state_that_is_not_loaded_back():
    model = network()
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
        if number % 3 == 2:
            model.load_state_dict(average.state_dict())  # <- here
            evaluate(model)


@buggy("GCS316")
def binary_weights_that_stay():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    layers = [model[0].weight, model[2].weight]
    kept = [each.detach().clone() for each in layers]

    def binarize():
        for saved, weight in zip(kept, layers, strict=True):
            saved.copy_(weight.data)
            weight.data.copy_(weight.data.sign() * weight.data.abs().mean())

    def restore():
        for saved, weight in zip(kept, layers, strict=True):
            weight.data.copy_(saved)

    for number in range(12):
        optimizer.zero_grad()
        binarize()
        model(torch.randn(8, 4)).square().mean().backward()
        restore()
        optimizer.step()
        if number % 3 == 2:
            binarize()  # <- here
            evaluate(model)


@clean
def average_that_is_taken_back():
    model = network()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(12):
        step(model, optimizer)
        average.update()
        if number % 3 == 2:
            average.apply()
            evaluate(model)
            average.restore()


@clean
def weights_are_clipped_after_each_step():
    model = network()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.05)
    for number in range(12):
        step(model, optimizer)
        for p in model.parameters():
            p.data.clamp_(-0.01, 0.01)
        if number % 3 == 2:
            evaluate(model)


@clean
def slow_weights_are_taken_over_every_other_step():
    model = network()
    slow = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(16):
        step(model, optimizer)
        if number % 2:
            with torch.no_grad():
                for kept, p in zip(slow, model.parameters(), strict=True):
                    kept.lerp_(p, 0.5)
                    p.copy_(kept)
        if number % 4 == 3:
            evaluate(model)


@clean
def pruned_before_each_evaluation():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        if number % 3 == 2:
            prune.l1_unstructured(model[0], "weight", amount=0.1)
            evaluate(model)


@clean
def masked_before_each_evaluation():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        if number % 3 == 2:
            weight = model[0].weight
            weight.data.mul_(weight.abs() > weight.abs().median())
            evaluate(model)


@clean
def the_best_state_is_loaded_after_an_evaluation():
    model = network()
    best, state = float("inf"), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        if number % 3 == 2:
            loss = evaluate(model)
            if loss < best:
                best, state = loss, copy.deepcopy(model.state_dict())
            else:
                model.load_state_dict(state)


@clean
def evaluated_as_it_was_trained():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        step(model, optimizer)
        if number % 3 == 2:
            evaluate(model)


@clean
def adapted_to_each_task_and_put_back():
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.Adam(model.parameters())

    def adapt():
        model.train()
        for _ in range(2):
            step(model, inner)

    for number in range(6):
        state = copy.deepcopy(model.state_dict())
        adapt()
        gradients = torch.autograd.grad(
            model(torch.randn(8, 4)).square().mean(), list(model.parameters())
        )
        model.load_state_dict(state)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
        outer.step()
        if number % 2:
            state = copy.deepcopy(model.state_dict())
            for _ in range(3):
                evaluate(model)
                adapt()
                evaluate(model)
                model.load_state_dict(state)


def moved(parameters, direction, scale):
    for p, d in zip(parameters, direction, strict=True):
        p.data.add_(d, alpha=scale)  # <- here


def curvature(model, direction, *, back):
    """Return the change of the gradient along a direction, by a central difference."""
    parameters = list(model.parameters())
    x = torch.randn(8, 4)
    moved(parameters, direction, 0.01)
    above = torch.autograd.grad(model(x).square().mean(), parameters)
    moved(parameters, direction, -0.02)
    below = torch.autograd.grad(model(x).square().mean(), parameters)
    if back:
        moved(parameters, direction, 0.01)
    return [(a - b) / 0.02 for a, b in zip(above, below, strict=True)]


def with_curvature(*, back):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(20):
        step(model, optimizer)
        if number % 4 == 3:
            curvature(model, [torch.randn_like(p) for p in model.parameters()], back=back)


@buggy("GCS316")
def central_difference_that_is_left_below():
    with_curvature(back=False)


@clean
def central_difference_that_is_taken_back():
    with_curvature(back=True)


def adversarial(*, back, clear):
    """Train on the loss at weights moved up its gradient (FGM, SAM)."""
    embedding, head = nn.Embedding(12, 6), nn.Linear(6, 1)
    optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()])

    def loss():
        return head(embedding(torch.randint(0, 12, (8,)))).square().mean()

    for _ in range(10):
        optimizer.zero_grad()
        loss().backward()
        gradient = embedding.weight.grad
        move = 0.1 * gradient / gradient.norm()
        with torch.no_grad():
            embedding.weight.add_(move)  # <- here
        if clear:
            optimizer.zero_grad()
        loss().backward()
        if back:
            with torch.no_grad():
                embedding.weight.sub_(move)
        optimizer.step()


@buggy("GCS316")
def attacked_embedding_that_is_not_restored():
    adversarial(back=False, clear=False)


@buggy("GCS316")
def ascent_that_is_not_taken_back():
    adversarial(back=False, clear=True)


@clean
def attacked_embedding_that_is_restored():
    adversarial(back=True, clear=False)
    adversarial(back=True, clear=True)


@clean
def weights_trained_by_hand_between_the_steps():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        for _ in range(3):
            gradients = torch.autograd.grad(
                model(torch.randn(8, 4)).square().mean(), list(model.parameters())
            )
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients, strict=True):
                    p.sub_(g, alpha=0.01)
        step(model, optimizer)


@clean
def noise_on_weights_that_are_also_decayed():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.999).add_(torch.randn_like(p), alpha=1e-3)
        step(model, optimizer)


@torch.no_grad()
def drawn(model):
    return model(torch.randn(8, 4)).mean().item()


@buggy("GCS316")
def average_in_a_model_without_modes():
    model = network()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(16):
        step(model, optimizer)
        average.update()
        if number % 3 == 2:
            average.apply()
            drawn(model)


@clean
def average_taken_back_in_a_model_without_modes():
    model = network()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(16):
        step(model, optimizer)
        average.update()
        if number % 3 == 2:
            average.apply()
            drawn(model)
            average.restore()


@clean
def weights_of_length_one_in_each_step():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        drawn(model)
        step(model, optimizer)
        with torch.no_grad():
            model[0].weight.copy_(nn.functional.normalize(model[0].weight))
        drawn(model)


@clean
def slow_weights_that_training_goes_on_from():
    model = network()
    slow = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(24):
        step(model, optimizer)
        if number % 4 == 3:
            with torch.no_grad():
                for kept, p in zip(slow, model.parameters(), strict=True):
                    kept.lerp_(p, 0.5)
                    p.copy_(kept)
        if number % 12 == 11:
            drawn(model)


def trained_by_epochs(set_back, optimizer=torch.optim.Adam, epochs=4, **options):
    model = network()
    trained_by = optimizer(model.parameters(), lr=0.01, **options)
    beginning = copy.deepcopy(model.state_dict())
    of_optimizer = copy.deepcopy(trained_by.state_dict())
    for epoch in range(epochs):
        model.train()
        for _ in range(3):
            step(model, trained_by)
        set_back(epoch, model, beginning, (trained_by, of_optimizer))


def loaded_again(_epoch, model, beginning, _optimizer):
    model.load_state_dict(beginning)


@buggy("GCS316")
def beginning_loaded_after_each_epoch():
    trained_by_epochs(loaded_again)


@buggy("GCS316")
def average_of_nothing_copied_in_for_each_checkpoint():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = Average(model)
    for _ in range(4):
        model.train()
        for _ in range(3):
            step(model, optimizer)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.data.copy_(average.shadow[name])  # <- here
        copy.deepcopy(model.state_dict())


@clean
def beginning_loaded_once():
    trained_by_epochs(lambda epoch, *rest: None if epoch else loaded_again(epoch, *rest))


@clean
def beginning_loaded_for_each_task_with_the_optimizer():
    def put_back(_epoch, model, beginning, optimizer):
        model.load_state_dict(beginning)
        optimizer[0].load_state_dict(optimizer[1])

    trained_by_epochs(put_back)


@clean
def beginning_loaded_for_each_task_without_moments():
    trained_by_epochs(loaded_again, torch.optim.SGD)


@clean
def another_optimizer_for_each_fold():
    model = network()
    beginning = copy.deepcopy(model.state_dict())
    for _ in range(4):
        model.load_state_dict(beginning)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model.train()
        for _ in range(3):
            step(model, optimizer)


@clean
def state_of_the_last_epoch_loaded_where_it_was_better():
    kept = {}

    def keep(epoch, model, _beginning, _optimizer):
        if epoch % 2:
            model.load_state_dict(kept)
        kept.update(copy.deepcopy(model.state_dict()))

    trained_by_epochs(keep)


@clean
def momentum_of_a_learner_that_begins_from_moving_weights():
    slow = {}

    def outer(_epoch, model, beginning, _optimizer):
        slow.update(slow or beginning)
        for name, value in model.state_dict().items():
            slow[name] = torch.lerp(slow[name], value, 0.5)
        model.load_state_dict(slow)

    trained_by_epochs(outer, torch.optim.SGD, momentum=0.9)


@clean
def clients_that_begin_from_the_common_weights():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    common = {name: each.clone() for name, each in model.state_dict().items()}
    for _ in range(4):
        trained = []
        for _client in range(2):
            model.load_state_dict(common)
            evaluate(model)
            for _ in range(3):
                step(model, optimizer)
            evaluate(model)
            trained.append({name: each.clone() for name, each in model.state_dict().items()})
        common = {name: sum(each[name] for each in trained) / 2 for name in common}
