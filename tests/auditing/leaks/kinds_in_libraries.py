"""The ways to keep every graph in what the standard library offers."""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import logging
import queue
import threading
import weakref
from unittest import mock

import torch
from torch import nn

from tests.auditing.leaks.bank import leak, steps


@leak("the cache of lru_cached()")
def unbounded_cache(session, take):
    current = {}

    @functools.cache
    def lru_cached(step):
        return take(current["loss"])

    with session:
        for step, (_, loss) in enumerate(steps()):
            current["loss"] = loss
            lru_cached(step)


@leak("list `jobs.queue` in a_list_queue()")
def a_list_queue(session, take):
    jobs = queue.LifoQueue()
    with session:
        for _, loss in steps():
            jobs.put(take(loss))


@leak("deque `jobs.queue` in a_fifo_queue()")
def a_fifo_queue(session, take):
    jobs = queue.Queue()
    with session:
        for _, loss in steps():
            jobs.put(take(loss))


@leak("list `losses` of a local of this thread")
def thread_local(session, take):
    local = threading.local()
    local.losses = []
    with session:
        for _, loss in steps():
            local.losses.append(take(loss))


RUN = contextvars.ContextVar("RUN")


@leak("list `RUN`, a context variable")
def context_variable(session, take):
    def run():
        RUN.set([])
        with session:
            for _, loss in steps():
                RUN.get().append(take(loss))

    contextvars.copy_context().run(run)


@leak("dict `optimizer.state[...]` in optimizer_state()")
def optimizer_state(session, take):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with session:
        for step in range(3):
            optimizer.zero_grad()
            loss = net(torch.randn(3, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.state[net.weight][step] = take(loss)


class Handler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@leak("list `handler.records` in log_records()")
def log_records(session, take):
    logger, handler = logging.Logger("train"), Handler()
    logger.addHandler(handler)
    with session:
        for _, loss in steps():
            logger.info("loss %s", take(loss))


@leak("a_mock()")
def a_mock(session, take):
    writer = mock.MagicMock()
    with session:
        for step, (_, loss) in enumerate(steps()):
            writer.add_scalar("loss", take(loss), step)


@leak("chain of tuple objects `linked` in linked_list()")
def linked_list(session, take):
    linked = None
    with session:
        for _, loss in steps(5):
            linked = (take(loss), linked)


class Cell:
    def __init__(self, value, before):
        self.value = value
        self.before = before


@leak("chain of Cell objects `newest` in linked_objects()")
def linked_objects(session, take):
    newest = None
    with session:
        for _, loss in steps(5):
            newest = Cell(take(loss), newest)


@leak("list `calls` in iterators()")
def iterators(session, take):
    calls = []
    with session:
        for _, loss in steps():
            calls.append(itertools.repeat(take(loss)))


@leak("dict `kept` in ordered_dict()")
def ordered_dict(session, take):
    kept = collections.OrderedDict()
    with session:
        for step, (_, loss) in enumerate(steps()):
            kept[f"step {step}"] = take(loss)


class Rows(collections.UserList):
    pass


@leak("list `rows.data` in user_list()")
def user_list(session, take):
    rows = Rows()
    with session:
        for _, loss in steps():
            rows.append(take(loss))


class Stack(list):
    pass


@leak("list `stack` in subclass_of_list()")
def subclass_of_list(session, take):
    stack = Stack()
    with session:
        for _, loss in steps():
            stack.append(take(loss))


class Dataset:
    def __init__(self):
        self.cache = {}

    def __getitem__(self, index):
        return self.cache[index]


@leak("dict `data.cache` in cached_features()")
def cached_features(session, take):
    data = Dataset()
    with session:
        for step, (out, _) in enumerate(steps()):
            data.cache[step] = take(out)


@leak("list `values` in values_of_a_weak_dictionary()")
def values_of_a_weak_dictionary(session, take):
    weak = weakref.WeakValueDictionary()
    values = []
    with session:
        for step, (_, loss) in enumerate(steps()):
            value = take(loss)
            values.append(value)
            weak[step] = value
