"""Check the gradients of every operator in torch's own test bank, beside torch's fast mode.

No operator gets options of its own. Left out is what torch's gradient tests skip or expect to fail
for the same operator, type and test; ``gradcheck_wrapper`` and ``output_process_fn_grad`` are
applied as there (they make an input symmetric, say, or drop an output that has no gradient).
Integer operands are handed on as they are. A sample whose input has no finite value is refused, and
counted so.
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

_SUITE = "TestBwdGradients"
_TEST = {1: "test_fn_grad", 2: "test_fn_gradgrad"}


def operators(dtype: torch.dtype, order: int) -> list[Entry]:
    """Return the operators with a gradient in this type that torch's own tests do not skip.

    At order 2 those whose first order is skipped are left out as well: it is checked too.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    bank: list[Any] = op_db
    return [
        _entry(operator, dtype)
        for operator in bank
        if operator.supports_autograd
        and (order == 1 or operator.supports_gradgrad)
        and dtype in operator.supported_backward_dtypes("cpu")
        and not any(
            upstream_skips(operator.decorators, _SUITE, _TEST[lower], dtype)
            for lower in range(1, order + 1)
        )
    ]


def _entry(operator: Any, dtype: torch.dtype) -> Entry:
    def samples() -> Iterator[Sample]:
        for sample in operator.sample_inputs("cpu", dtype, requires_grad=True):
            yield _sample(operator, sample)

    return Entry(f"{operator.name} {operator.variant_test_name}".strip(), samples)


def _sample(operator: Any, sample: Any) -> Sample:
    def call(given: Any, args: Any, kwargs: Any) -> object:
        output = operator.gradcheck_wrapper(operator.get_op(), given, *args, **kwargs)
        process = sample.output_process_fn_grad
        return output if process is None else process(output)

    given = (sample.input, sample.args, sample.kwargs)
    return Sample(call, given, operator.gradcheck_nondet_tol)


def run(arguments: argparse.Namespace) -> Scores:
    """Check the operators that the arguments choose."""
    dtype = getattr(torch, arguments.dtype)
    entries = chosen(operators(dtype, arguments.order), arguments)
    return swept(f"op_db, {arguments.dtype}", "op_db", entries, arguments)


if __name__ == "__main__":
    sys.exit(command(run, dtypes=("float64", "float32", "complex128")))
