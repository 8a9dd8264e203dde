"""Counts the calls that an audit adds, in a process where nothing else is.

Other tests leave what is called from anywhere, as the callbacks of the garbage collector that
hypothesis registers, and that would be counted. Run as a program it is given one count to make.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.detectors import leaf_records
from tests import warm_python

# Leaves are looked at in the steps that are powers of two: these are those between 16 and 32.
BEFORE, STEPS = 17, 15


def added_to(program, *arguments, look_at_leaves=False, **options):
    """Return the calls, of Python's and of C's functions, that an audit adds to one run of it.

    ``program`` is the name of a function here that, with the arguments, makes what is run.
    """
    made = json.dumps([program, arguments, look_at_leaves, options])
    done = warm_python.run(
        ["-m", "tests.auditing.call_counts", made], cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def step_of(layers):
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(layers)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batch = torch.randn(3, 4)

    def step():
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()

    return step


def halving(times):
    def halve():
        x = torch.ones(3)
        for _ in range(times):
            x /= 2

    return halve


def halving_another_each_time(times):
    def halve():
        for _ in range(times):
            x = torch.ones(3)
            x /= 2

    return halve


def filling(times, needs_gradients):
    values = torch.ones(times, requires_grad=needs_gradients)

    def fill():
        x = torch.zeros(times)
        for place in range(times):
            x[place] = values[place]

    return fill


def _calls_in(run):
    """Return how many functions, of Python's and of C's, one run calls, as a mean of some."""
    counts = Counter()

    def count(_frame, event, _argument):
        counts[event] += 1

    for _ in range(BEFORE):
        run()
    sys.setprofile(count)
    try:
        for _ in range(STEPS):
            run()
    finally:
        sys.setprofile(None)
    return counts["call"] / STEPS, counts["c_call"] / STEPS


def main(made):
    program, arguments, look_at_leaves, options = json.loads(made)
    if look_at_leaves:
        leaf_records.is_looked_at = lambda *_, **__: True
    bare = _calls_in(globals()[program](*arguments))
    with gs.audit(report=False, **options):
        audited = _calls_in(globals()[program](*arguments))
    added = [with_it - without for with_it, without in zip(audited, bare, strict=True)]
    sys.stdout.write(json.dumps(added))


if __name__ == "__main__":
    main(sys.argv[1])
