"""``gradcheck-suite verify``: check the gradients of a function or module in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_suite.commands._shared import Subparsers, add_report_options, emit
from gradcheck_suite.commands._targets import load_target
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Compare the gradients of a function, module or autograd.Function with central
differences. INPUTS names a function without arguments that makes the inputs:
one tensor, a tuple of positional arguments, a dict of keyword arguments, or
a pair of both, (tuple, dict). Inputs that require grad are checked, and so are
the parameters of a module.
"""
_ARGS_AND_KWARGS = 2


def add_parser(subparsers: Subparsers) -> None:
    """Add ``verify`` to the commands."""
    parser = subparsers.add_parser(
        "verify",
        help="check gradients against central differences",
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "target",
        metavar="FILE.py:TARGET",
        help="a function, a module instance or an autograd.Function class",
    )
    parser.add_argument(
        "--inputs",
        required=True,
        metavar="FILE.py:INPUTS",
        help="a function without arguments that makes the inputs",
    )
    parser.add_argument(
        "--dtype",
        choices=("native", "float32", "float64"),
        default="native",
        help="type that inputs, parameters and buffers are cast to (default: native, no cast)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of probes and random draws (default: 0)"
    )
    parser.add_argument(
        "--probes",
        type=int,
        metavar="N",
        help="random probes for each gradient (default: 2 in float64, 4 in float32)",
    )
    parser.add_argument(
        "--no-parameters",
        dest="parameters",
        action="store_false",
        help="hold the parameters of a module constant",
    )
    parser.add_argument(
        "--skip-output",
        action="append",
        default=[],
        metavar="NAME",
        help="an output that is not checked, such as 'output[1]'; may be given again",
    )
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the gradients, write the report and return the exit status."""
    from gradcheck_suite.verification import check_gradients  # noqa: PLC0415 - needs torch

    target = load_target(arguments.target)
    inputs, kwargs = _make_inputs(arguments.inputs)
    report = check_gradients(
        target,
        inputs,
        kwargs=kwargs,
        parameters=arguments.parameters,
        dtype=arguments.dtype,
        probes=arguments.probes,
        seed=arguments.seed,
        skip_outputs=arguments.skip_output,
    )
    return emit(report, arguments)


def _make_inputs(name: str) -> tuple[Any, dict[str, Any] | None]:
    make = load_target(name)
    if isinstance(make, type) or not callable(make):
        raise UsageError(
            f"{name} names an object of type {type(make).__name__}, expected a function "
            "without arguments that returns the inputs; write one, such as: "
            "def make_inputs(): return (torch.randn(4, 3, requires_grad=True),)"
        )
    made = make()
    if (
        type(made) is tuple
        and len(made) == _ARGS_AND_KWARGS
        and type(made[0]) is tuple
        and type(made[1]) is dict
    ):
        return made
    return made, None
