"""The ways to keep every graph."""

# ruff: noqa: ARG002, ARG005, B006, B008, F841, PERF203 - mistakes, as people make them

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import heapq
import types
import typing

import numpy as np
import torch
from torch import nn

from tests.auditing.leaks import other_module
from tests.auditing.leaks.bank import leak, steps

HISTORY: list = []
BY_NAME: dict = {}


@leak("list `losses` in list_of_losses()")
def list_of_losses(session, take):
    losses = []
    with session:
        for _, loss in steps():
            losses.append(take(loss))


@leak("list `losses` in augmented_list()")
def augmented_list(session, take):
    losses = []
    with session:
        for _, loss in steps():
            losses += [take(loss)]


@leak("list `losses` in new_list_each_time()")
def new_list_each_time(session, take):
    losses = []
    with session:
        for _, loss in steps():
            losses = [*losses, take(loss)]


@leak("list `rows` in list_of_rows()")
def list_of_rows(session, take):
    rows = []
    with session:
        for step, (out, loss) in enumerate(steps()):
            rows.append({"step": step, "loss": take(loss), "out": take(out)})


@leak("list `outputs` in list_of_tuples()")
def list_of_tuples(session, take):
    outputs = []
    with session:
        for step, (out, _) in enumerate(steps()):
            outputs.append((step, take(out)))


@leak("dict `history` in dict_by_step()")
def dict_by_step(session, take):
    history = {}
    with session:
        for step, (_, loss) in enumerate(steps()):
            history[step] = take(loss)


@leak('list `log["train"]` in dict_of_lists()')
def dict_of_lists(session, take):
    log = collections.defaultdict(list)
    with session:
        for _, loss in steps():
            log["train"].append(take(loss))


@leak('list `log["a"][0]` in nested_containers()')
def nested_containers(session, take):
    log = {"a": ([],)}
    with session:
        for _, loss in steps():
            log["a"][0].append(take(loss))


@leak("deque `losses` in unbounded_deque()")
def unbounded_deque(session, take):
    losses = collections.deque()
    with session:
        for _, loss in steps():
            losses.append(take(loss))


@leak("set `seen` in set_of_tensors()")
def set_of_tensors(session, take):
    seen = set()
    with session:
        for _, loss in steps():
            seen.add(take(loss))


@leak("dict `rank` in tensors_as_keys()")
def tensors_as_keys(session, take):
    rank = {}
    with session:
        for step, (_, loss) in enumerate(steps()):
            rank[take(loss)] = step


@leak("list `best` in heap()")
def heap(session, take):
    best = []
    with session:
        for step, (_, loss) in enumerate(steps()):
            heapq.heappush(best, (-step, step, take(loss)))


@leak("sum `total` in running_sum()")
def running_sum(session, take):
    total = 0.0
    with session:
        for _, loss in steps(4):
            total += take(loss)


@leak("`average` in moving_average()")
def moving_average(session, take):
    average = torch.zeros(())
    with session:
        for _, loss in steps(4):
            average = 0.9 * average + 0.1 * take(loss)


@leak("concatenation `everything` in concatenated()")
def concatenated(session, take):
    everything = torch.zeros(0, 1)
    with session:
        for out, _ in steps(4):
            everything = torch.cat([everything, take(out)])


class AverageMeter:
    def __init__(self):
        self.total = 0.0
        self.values = []

    def update(self, value):
        self.total += value

    def keep(self, value):
        self.values.append(value)


@leak("sum `meter.total` in average_meter()")
def average_meter(session, take):
    meter = AverageMeter()
    with session:
        for _, loss in steps(4):
            meter.update(take(loss))


@leak("list `meter.values` in attribute()")
def attribute(session, take):
    meter = AverageMeter()
    with session:
        for _, loss in steps():
            meter.keep(take(loss))


@leak("list `trainer.meters.train.values` in nested_attribute()")
def nested_attribute(session, take):
    meters = types.SimpleNamespace(train=AverageMeter())
    trainer = types.SimpleNamespace(meters=meters)
    del meters
    with session:
        for _, loss in steps():
            trainer.meters.train.keep(take(loss))


class Trainer:
    history: typing.ClassVar[list] = []

    def __init__(self):
        self.losses = []

    def fit(self, session, take):
        with session:
            for _, loss in steps():
                self.losses.append(take(loss))


@leak("list `self.losses` in Trainer.fit()")
def attribute_of_self(session, take):
    Trainer().fit(session, take)


@leak("list `Trainer.history`, shared by the class")
def class_attribute(session, take):
    Trainer.history = []
    with session:
        for _, loss in steps():
            Trainer.history.append(take(loss))


class Slotted:
    __slots__ = ("rows",)

    def __init__(self):
        self.rows = []


@leak("list `store.rows` in slots()")
def slots(session, take):
    store = Slotted()
    with session:
        for _, loss in steps():
            store.rows.append(take(loss))


@dataclasses.dataclass
class Record:
    losses: list = dataclasses.field(default_factory=list)


@leak("list `record.losses` in a_dataclass()")
def a_dataclass(session, take):
    record = Record()
    with session:
        for _, loss in steps():
            record.losses.append(take(loss))


State = collections.namedtuple("State", "losses name")


@leak("list `state.losses` in a_namedtuple()")
def a_namedtuple(session, take):
    state = State([], "a")
    with session:
        for _, loss in steps():
            state.losses.append(take(loss))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(()))
        self.activations = []
        self.take = None

    def forward(self, x):
        out = self.layer(x)
        self.activations.append(self.take(out))
        return out


class WithBuffer(Network):
    def forward(self, x):
        out = self.layer(x)
        self.mean = self.mean + self.take(out).mean()
        return out


@leak("list `net.activations` in attribute_of_a_module()")
def attribute_of_a_module(session, take):
    net = Network()
    net.take = take
    with session:
        for _ in steps(net=net):
            pass


@leak("`net.mean` in buffer_of_a_module()")
def buffer_of_a_module(session, take):
    net = WithBuffer()
    net.take = take
    with session:
        for _ in steps(4, net=net):
            pass


@leak("list `HISTORY` in module ")
def module_global(session, take):
    HISTORY.clear()
    with session:
        for _, loss in steps():
            HISTORY.append(take(loss))


@leak("list `RECORDS` in module tests.auditing.leaks.other_module")
def global_of_another_module(session, take):
    with session:
        for _, loss in steps():
            other_module.RECORDS.append(take(loss))


@leak('`BY_NAME["losses"]` in module ')
def inside_a_global(session, take):
    BY_NAME["losses"] = []
    with session:
        for _, loss in steps():
            BY_NAME["losses"].append(take(loss))


def keeping(values):
    def keep(value):
        values.append(value)

    return keep


@leak("list `values` in keeping.<locals>.keep()")
def closure_variable(session, take):
    keep = keeping([])
    with session:
        for _, loss in steps():
            keep(take(loss))


def later(value):
    return lambda: value


@leak("list of closures `callbacks` in list_of_closures()")
def list_of_closures(session, take):
    callbacks = []
    with session:
        for _, loss in steps():
            callbacks.append(later(take(loss)))


@leak("list of closures `pending` in list_of_default_arguments()")
def list_of_default_arguments(session, take):
    pending = []
    with session:
        for _, loss in steps():
            pending.append(lambda value=take(loss): value)


@leak("list `pending` in list_of_partials()")
def list_of_partials(session, take):
    pending = []
    with session:
        for _, loss in steps():
            pending.append(functools.partial(print, take(loss)))


def remember(value, cache=[]):
    cache.append(value)


@leak("list `cache` in the defaults of remember()")
def default_argument(session, take):
    with session:
        for _, loss in steps():
            remember(take(loss))


def logging_function(value):
    logging_function.seen.append(value)


@leak("list `logging_function.seen`")
def attribute_of_a_function(session, take):
    logging_function.seen = []
    with session:
        for _, loss in steps():
            logging_function(take(loss))


def collector():
    losses = []
    while True:
        losses.append((yield))


@leak("list `losses` in generator collector()")
def generator_frame(session, take):
    collect = collector()
    next(collect)
    with session:
        for _, loss in steps():
            collect.send(take(loss))
    collect.close()


async def train_slowly(take):
    losses = []
    for _, loss in steps():
        losses.append(take(loss))
    await asyncio.sleep(0)
    return losses


@leak("list `losses` in coroutine train_slowly()")
def coroutine_frame(session, take):
    async def main():
        task = asyncio.ensure_future(train_slowly(take))
        with session:
            while not any(f.get_coro().cr_await for f in [task] if f.get_coro()):
                await asyncio.sleep(0)
                break
        await task

    asyncio.run(main())


def failing(out):
    doubled = out * 2
    raise ValueError(f"shape {tuple(doubled.shape)}")


@leak("list of exceptions `errors` in kept_exceptions()")
def kept_exceptions(session, take):
    errors = []
    with session:
        for out, _ in steps():
            try:
                failing(take(out))
            except ValueError as error:
                errors.append(error)


@leak("list `store.outputs` in module_hook()", "GCS207")
def module_hook(session, take):
    net = nn.Linear(4, 1)
    store = types.SimpleNamespace(outputs=[])
    net.register_forward_hook(lambda module, inputs, output: store.outputs.append(take(output)))
    with session:
        for _ in steps(net=net):
            pass


class Features:
    def __init__(self, layer, take):
        self.outputs = []
        self.take = take
        layer.register_forward_hook(self.store)

    def store(self, module, inputs, output):
        self.outputs.append(self.take(output))


@leak("list `features.outputs` in hook_of_an_object()", "GCS207")
def hook_of_an_object(session, take):
    net = nn.Linear(4, 1)
    features = Features(net, take)
    with session:
        for _ in steps(net=net):
            pass


@leak("list `inputs_seen` in pre_hook()", "GCS207")
def pre_hook(session, take):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    inputs_seen = []

    def store(module, inputs):
        inputs_seen.append(take(inputs[0]))

    net[1].register_forward_pre_hook(store)
    with session:
        for _ in steps(net=net):
            pass


class OutputOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.out = x * 2
        return ctx.out

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 + 0 * ctx.out


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return OutputOnCtx.apply(self.layer(x))


@leak("`ctx.out`", "GCS201", "GCS205", repaired=False)
def output_on_ctx(session, take):
    net = Doubling()
    with session:
        for _ in steps(net=net):
            pass


@leak("list `ctx_values`", repaired=True)
def list_of_contexts(session, take):
    ctx_values = []
    with session:
        for _, loss in steps():
            ctx_values.append(types.SimpleNamespace(value=take(loss)))


@leak("array `table` in object_array()")
def object_array(session, take):
    table = np.empty(10, dtype=object)
    with session:
        for step, (_, loss) in enumerate(steps()):
            table[step] = take(loss)
