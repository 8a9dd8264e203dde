"""Check the gradients of every module in torch's own test bank, parameters and all.

As in ``op_db``, no module gets options of its own, and left out is what torch's gradient tests skip
or expect to fail for the same module. Modules that behave differently in training are checked both
ways. Lazy modules see their input once before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.sweeping import Entry, Sample, chosen, command, swept, upstream_skips

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from benchmarks.harness import Scores

_SUITE = "TestModule"
_TEST = {1: "test_grad", 2: "test_gradgrad"}


def modules(dtype: torch.dtype, order: int) -> list[Entry]:
    """Return the modules with a gradient in this type that torch's own test does not skip."""
    from torch.testing._internal.common_modules import module_db

    bank: list[Any] = module_db
    return [
        _entry(module, dtype, training=training)
        for module in bank
        if dtype in module.supported_dtypes("cpu")
        and (order == 1 or module.supports_gradgrad)
        and not any(
            upstream_skips(module.decorators, _SUITE, _TEST[lower], dtype)
            for lower in range(1, order + 1)
        )
        for training in ((True, False) if module.train_and_eval_differ else (True,))
    ]


def _entry(module: Any, dtype: torch.dtype, *, training: bool) -> Entry:
    def samples() -> Iterator[Sample]:
        given = module.module_inputs_func(
            module, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for number, sample in enumerate(given):
            if sample.forward_input is not None:
                torch.manual_seed(number)
                yield _sample(module, sample, dtype, training=training)

    mode = "" if training else " in eval mode"
    return Entry(f"{module.name}{mode}", samples)


def _sample(module: Any, sample: Any, dtype: torch.dtype, *, training: bool) -> Sample:
    made = sample.constructor_input
    network = module.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
    args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
    if module.is_lazy:
        with torch.no_grad():
            network(*args, **kwargs)
    return Sample(network, tuple(args), module.gradcheck_nondet_tol, dict(kwargs))


def run(arguments: argparse.Namespace) -> Scores:
    """Check the modules that the arguments choose."""
    dtype = getattr(torch, arguments.dtype)
    entries = chosen(modules(dtype, arguments.order), arguments)
    return swept(f"module_db, {arguments.dtype}", "module_db", entries, arguments)


if __name__ == "__main__":
    sys.exit(command(run, dtypes=("float64", "float32")))
