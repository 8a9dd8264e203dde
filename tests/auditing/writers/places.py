"""Writers in all kinds of places: loops, helpers, hooks, blocks, classes, other modules."""

from __future__ import annotations

import contextlib
import functools
import itertools

import numpy as np
import torch
from torch import nn

from tests.auditing.writers import elsewhere
from tests.auditing.writers.bank import case, parts
from tests.auditing.writers.memory_routes import batch


@case(source=elsewhere.centre)
def helper_in_another_module(fixed):
    array, _, forward = batch()

    turns = itertools.count(3)

    def forward_of_new_values():
        np.copyto(array, np.linspace(1, next(turns), 12).reshape(4, 3))
        return forward()

    return parts(fixed, forward_of_new_values, lambda: elsewhere.centre(array))


@case(source=elsewhere.Normaliser)
def method_of_another_module(fixed):
    array, _, forward = batch()
    normaliser = elsewhere.Normaliser(array)
    return parts(fixed, forward, normaliser.apply)


@case(source=elsewhere.collate)
def collate_function(fixed):
    out = np.zeros((4, 3), dtype=np.float32)
    layer = nn.Linear(3, 1)
    turns = itertools.count(1)

    def batches():
        while True:
            yield torch.from_numpy(elsewhere.collate([[next(turns)] * 3] * 4, out))

    stream = batches()
    waiting = [next(stream)]

    def step():
        loss = layer(waiting[0]).pow(2).sum()
        if not fixed:
            waiting[0] = next(stream)
        loss.backward()
        if fixed:
            waiting[0] = next(stream)

    return step


@case
def comprehension(fixed):
    array, _, forward = batch()

    def write():
        return [array.__setitem__(row, array[row] + 1) for row in range(2)]  # <- written

    return parts(fixed, forward, write)


@case
def loop_with_one_turn_that_writes(fixed):
    array, _, forward = batch()

    def write():
        total = 0.0
        for row in range(4):
            total += float(array[row].sum())
            if row == 2:
                array[row] = total / 7  # <- written
            total -= 1.0

    return parts(fixed, forward, write)


@case
def while_loop(fixed):
    array, _, forward = batch()

    def write():
        left = 3
        while left:
            left -= 1
            array[left] += 1  # <- written

    return parts(fixed, forward, write)


@case
def with_block(fixed):
    array, _, forward = batch()

    def write():
        with contextlib.suppress(ValueError), torch.no_grad():
            before = array.sum()
            array[0] = before  # <- written
            int("no number")

    return parts(fixed, forward, write)


@case
def context_manager_of_the_users(fixed):
    array, _, forward = batch()

    @contextlib.contextmanager
    def doubled():
        yield
        array[...] *= 2  # <- written

    def write():
        with doubled():
            pass

    return parts(fixed, forward, write)


@case
def try_and_finally(fixed):
    array, _, forward = batch()

    def write():
        try:
            float("no number")
        except ValueError:
            str(array)
        finally:
            array[1] -= 4  # <- written

    return parts(fixed, forward, write)


@case
def call_over_several_lines(fixed):
    array, _, forward = batch()

    def write():
        np.add(  # <- written
            array,
            1.0,
            out=array,
        )

    return parts(fixed, forward, write)


@case
def chain_over_several_lines(fixed):
    kept = []
    leaf = torch.linspace(0.5, 1.5, 6).requires_grad_()

    def forward():
        kept[:] = [leaf.exp()]
        return kept[0].pow(2).sum()

    def write():
        (
            kept[0].detach().numpy().fill(0.5)  # <- written
        )

    return parts(fixed, forward, write)


@case
def argument_of_a_call(fixed):
    array, _, forward = batch()

    def bump():
        array[0, 0] += 1  # <- written
        return 1

    def write():
        return max(
            0,
            bump(),
        )

    return parts(fixed, forward, write)


@case
def lambda_function(fixed):
    array, _, forward = batch()
    ways = {
        "put": lambda row: array.put(row, array.flat[row] + 3),  # <- written
    }
    return parts(fixed, forward, lambda: ways["put"](2))


@case
def decorated_function(fixed):
    array, _, forward = batch()

    @elsewhere.logged
    @functools.lru_cache(maxsize=0)
    def write():
        array[2, 2] += 1  # <- written

    return parts(fixed, forward, write)


@case
def partial_function(fixed):
    array, _, forward = batch()

    def bump(row, by):
        array[row] += by  # <- written

    return parts(fixed, forward, functools.partial(bump, 1, by=2.0))


@case
def generator_between_two_values(fixed):
    array, _, forward = batch()

    def values():
        for count in itertools.count(1):
            yield count
            array[0] += count  # <- written

    stream = values()
    next(stream)
    return parts(fixed, forward, lambda: next(stream))


@case
def property_of_a_class(fixed):
    array, _, forward = batch()

    class Meter:
        @property
        def mean(self):
            array[0] *= 0.5  # <- written
            return array.mean()

    meter = Meter()
    return parts(fixed, forward, lambda: meter.mean)


@case
def magic_method(fixed):
    array, _, forward = batch()

    class Scaled:
        def __call__(self):
            self += 1

        def __iadd__(self, other):
            array[...] += other  # <- written
            return self

    return parts(fixed, forward, Scaled())


@case
def forward_hook(fixed):
    array = np.ones((4, 3), dtype=np.float32)
    layer = nn.Linear(3, 3)
    head = nn.Linear(3, 1)

    def hook(module, inputs, output):
        array[...] *= 1.25  # <- written

    (nn.Identity() if fixed else layer).register_forward_hook(hook)

    def step():
        head(torch.tanh(layer(torch.from_numpy(array)))).sum().backward()

    return step


@case
def hook_of_a_gradient(fixed):
    first = torch.ones(3, requires_grad=True)
    kept = []

    def hook(gradient):
        kept[0].detach().numpy().fill(0.5)  # <- written
        return gradient

    def step():
        kept[:] = [first.exp()]
        y = kept[0] * 2
        z = y.tanh()
        if not fixed:
            z.register_hook(hook)
        (z * z + z).sum().backward()

    return step


@case
def callback_after_each_batch(fixed):
    array, _, forward = batch()

    class Callback:
        def on_batch_end(self, logs):
            logs["mean"] = array.mean()
            array[1, 1] = logs["mean"] + 1  # <- written

    callbacks = [Callback()]

    def write():
        for callback in callbacks:
            callback.on_batch_end({})

    return parts(fixed, forward, write)


@case
def forward_of_the_users_module(fixed):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y = x * self.scale * (self.seen if not fixed else self.seen.clone())
            self.seen.numpy()[:] += 1  # <- written
            return y.sum()

    model = Model()

    def step():
        model(torch.ones(2, 3)).backward()

    return step


@case
def exponential_average_too_early(fixed):
    layer = nn.Linear(3, 1)
    average = [parameter.detach().clone() for parameter in layer.parameters()]
    x = torch.randn(2, 3, requires_grad=True)

    def write():
        with torch.no_grad():
            for parameter, mean in zip(layer.parameters(), average, strict=True):
                mean.add_(1.0)
                parameter.data = mean.clone()  # <- written

    return parts(fixed, lambda: torch.sum(x * layer.weight), write)


@case
def custom_backward_that_writes(fixed):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, array):
            ctx.array = array
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            if not fixed:
                ctx.array[:] += 1  # <- written
            return gradient * 2, None

    array = np.ones(3, dtype=np.float32)
    x = torch.ones(3, requires_grad=True)

    def step():
        h = x * torch.from_numpy(array)
        Scale.apply(h, array).sum().backward()

    return step


@case
def several_tensors_by_one_line(fixed):
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
    x = torch.randn(2, 3, requires_grad=True)

    def forward():
        h = x
        for layer in layers:
            h = layer(h).tanh()
        return h.sum()

    def write():
        for layer in layers:
            layer.weight.detach().numpy()[...] *= 0.5  # <- written

    return parts(fixed, forward, write)


@case
def written_back_then_written_again(fixed):
    array, _, forward = batch()

    def write():
        kept = array.copy()
        array[...] = 0
        array[...] = kept
        array[0] += 1  # <- written

    return parts(fixed, forward, write)
