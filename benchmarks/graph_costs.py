"""What recording adds to forward and backward, and how long a large picture takes."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import torch

import gradcheck_suite as gs
from benchmarks.graph_subjects import encoder
from benchmarks.harness import Benchmark, Contender, Result, Scores, measure, run_as_command
from gradcheck_suite._torch_compat import add_post_hooks, flattened
from gradcheck_suite.graph.recording.hook_placement import HookCount, place_sparse_hooks
from gradcheck_suite.graph.render.html import graph_to_html
from gradcheck_suite.graph.render.svg import graph_to_svg

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD_GOAL = 2.0
BACKWARD_GOAL = 1.5
PICTURE_GOAL = 0.25
LARGE_GOAL = 1.5
DEEP_GOAL = 5.0
PAGE_GOAL = 1_000_000
_SMALL = 1 << 16


def run() -> tuple[Result, ...]:
    """Measure forward, backward and pictures, one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    small, x = encoder(6), torch.randn(2, 10, 64)
    usual, y = encoder(6, 256), torch.randn(8, 64, 256)
    return (
        _forward(small, x, "6-layer transformer, width 64, 2 x 10 tokens"),
        _backward(small, x, "6-layer transformer, width 64, 2 x 10 tokens"),
        _backward(usual, y, "6-layer transformer, width 256, 8 x 64 tokens"),
        _pictures(small, x),
    )


def _forward(model: torch.nn.Module, x: torch.Tensor, what: str) -> Benchmark:
    # With gradients, most of what backward would have to do first is done as forward ends.
    def recorded(**options: bool) -> None:
        with gs.record(model, **options):
            model(x).sum()

    rows = measure(
        [
            Contender("bare", lambda: model(x).sum()),
            Contender("modules", partial(recorded, saved=False)),
            Contender("modules and saved bytes", recorded),
            Contender(
                "modules and what gradients need", partial(recorded, saved=False, backward=True)
            ),
            Contender("all three", partial(recorded, backward=True)),
        ],
        rounds=41,
        clock=time.process_time,
    )
    return Benchmark(
        title=f"Recording a forward ({what})",
        command="python -m benchmarks.graph_costs",
        unit="forward (CPU)",
        rows=rows,
        goal=f"each at most {FORWARD_GOAL} times the bare forward",
        met=max(row.ratio for row in rows) <= FORWARD_GOAL,
    )


def _backward(model: torch.nn.Module, x: torch.Tensor, what: str) -> Benchmark:
    spent: dict[str, float] = {}

    def bare() -> None:
        loss = model(x).sum()
        start = time.process_time()
        loss.backward()
        spent["bare"] = time.process_time() - start

    def watched(
        name: str, *, looks: bool = False, modules: bool = True, saved: bool = False
    ) -> None:
        with gs.record(modules=modules, saved=saved, backward=True) as recording:
            loss = model(x).sum()
            start = time.process_time()
            loss.backward()
            if looks:
                recording.gradients()
            spent[name] = time.process_time() - start

    def hooked(*, reads: bool) -> None:
        hook_count = HookCount()
        loss = model(x).sum()
        kept: list[torch.Tensor | None] = []
        start = time.process_time()
        chosen = place_sparse_hooks([loss.grad_fn], hook_count)
        assert chosen is not None, "a model without hooks"

        def keep(gradients: tuple[torch.Tensor | None, ...], _: object) -> None:
            kept.extend(gradients)

        hook = keep if reads else _nothing
        remove = add_post_hooks((node, hook) for node in chosen.hooked)
        loss.backward()
        remove()
        if reads:
            with torch.no_grad():
                whole = flattened([each for each in kept if each is not None])
                torch.linalg.vector_norm(whole).item()
                whole.ne_(0).sum().item()
        spent["one norm" if reads else "empty hooks"] = time.process_time() - start

    # Only backward is timed: the clock shows what it has taken so far.
    elapsed = 0.0
    current = "bare"

    def clock() -> float:
        nonlocal elapsed
        elapsed += spent.pop(current, 0.0)
        return elapsed

    bursts: dict[str, Callable[[], None]] = {
        "bare": bare,
        "gradients": partial(watched, "gradients"),
        "no modules": partial(watched, "no modules", modules=False),
        "saved": partial(watched, "saved", saved=True),
        "look": partial(watched, "look", looks=True),
        "empty hooks": partial(hooked, reads=False),
        "one norm": partial(hooked, reads=True),
    }

    def timed(name: str) -> None:
        nonlocal current
        current = name
        bursts[name]()

    # Nothing that reads gradients can cost less; of large ones it would hold too many at once.
    floor = [Contender("those, and one norm of all gradients", partial(timed, "one norm"))]
    rows = measure(
        [
            Contender("bare", partial(timed, "bare")),
            Contender("gradients", partial(timed, "gradients")),
            Contender("gradients, modules=False", partial(timed, "no modules")),
            Contender("gradients and saved bytes", partial(timed, "saved")),
            Contender("gradients, and a look at them", partial(timed, "look")),
            Contender("the same walk and hooks, empty", partial(timed, "empty hooks")),
            *(floor if x.numel() <= _SMALL else ()),
        ],
        rounds=21,
        clock=clock,
    )
    return Benchmark(
        title=f"Recording a backward ({what})",
        command="python -m benchmarks.graph_costs",
        unit="backward (CPU)",
        rows=rows,
        goal=f"gradients, however recorded, at most {BACKWARD_GOAL} times the bare backward",
        met=max(row.ratio for row in rows[1:4]) <= BACKWARD_GOAL,
    )


def _nothing(*_: object) -> None:
    """Be called, and do nothing."""


def _pictures(model: torch.nn.Module, x: torch.Tensor) -> Scores:
    with gs.record(model) as recording:
        loss = model(x).sum()
    start = time.process_time()
    graph = recording.trace_graph(loss, model=model)
    graph_to_svg(graph)
    usual = time.process_time() - start
    page = len(graph_to_html(graph).encode())

    z = leaf = torch.ones(4, requires_grad=True)
    for step in range(2_500):
        z = z.sin() + (leaf if step % 7 == 3 else z)
    start = time.process_time()
    large = gs.trace_graph(z.sum())
    graph_to_svg(large, depth=-1)
    whole = time.process_time() - start
    large_page = len(graph_to_html(large, depth=-1).encode())
    large_nodes = len(large.nodes)
    del z, large

    y = torch.ones(1, requires_grad=True)
    for _ in range(100_000):
        y = y * 1.0
    start = time.process_time()
    nodes = len(gs.trace_graph(y).nodes)
    deep = time.process_time() - start
    return Scores(
        title="Pictures",
        command="python -m benchmarks.graph_costs",
        columns=("", "seconds or bytes", "goal"),
        rows=(
            ("model and SVG of the 6-layer transformer", usual, f"{PICTURE_GOAL} s"),
            ("HTML of it", page, f"{PAGE_GOAL} bytes"),
            (f"model and SVG of {large_nodes} nodes, all open", whole, f"{LARGE_GOAL} s"),
            ("HTML of those", large_page, f"{PAGE_GOAL} bytes"),
            (f"model of {nodes} nodes", deep, f"{DEEP_GOAL} s"),
        ),
        goal="each below its own",
        met=(
            usual <= PICTURE_GOAL
            and whole <= LARGE_GOAL
            and max(page, large_page) <= PAGE_GOAL
            and deep <= DEEP_GOAL
        ),
    )


if __name__ == "__main__":
    raise SystemExit(run_as_command(run))
