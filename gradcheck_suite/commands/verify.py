"""``gradcheck-suite verify``: check the gradients of a function or module in a file."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import TYPE_CHECKING

from gradcheck_suite.commands._shared import (
    Subparsers,
    add_report_options,
    add_reproduce_option,
    run_check,
    seconds,
)
from gradcheck_suite.commands._targets import Subject, add_subject_options, load_subject

if TYPE_CHECKING:
    from gradcheck_suite.findings import Report

_DESCRIPTION = """\
Compare the gradients of a function, module or autograd.Function with central
differences. INPUTS names a function without arguments that makes the inputs:
one tensor, a tuple of positional arguments, a dict of keyword arguments, or
a pair of both, (tuple, dict). Inputs that require grad are checked, and so are
the parameters of a module.
"""
_EPILOG = """\
exit status: 0 nothing wrong, 1 findings at or above --fail-on, 2 if the check
could not be done, 130 after Ctrl-C, with a report of what was concluded until
then.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``verify`` to the commands."""
    parser = subparsers.add_parser(
        "verify",
        help="check gradients against central differences",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject_options(
        parser,
        target="a function, a module instance or a function that makes one, or an "
        "autograd.Function class",
    )
    parser.add_argument(
        "--dtype",
        choices=("native", "float32", "float64"),
        default="native",
        help="type that inputs, parameters and buffers are cast to (default: native, no cast)",
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
    _add_depth_options(parser)
    add_reproduce_option(parser)
    add_report_options(parser)
    parser.set_defaults(run=run)


def _add_depth_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is checked besides")
    group.add_argument(
        "--order",
        type=int,
        choices=(1, 2),
        help="2 checks the gradients of the gradients, 1 does not (default: where custom "
        "Functions are involved)",
    )
    group.add_argument(
        "--full", action="store_true", help="compare the whole Jacobian, entry by entry"
    )
    group.add_argument(
        "--variations",
        metavar="NAMES",
        help="variations of the inputs to try, separated by commas, or 'none' (default: all)",
    )
    group.add_argument(
        "--forward-mode", action="store_true", help="compare forward-mode derivatives"
    )
    group.add_argument("--batched", action="store_true", help="compare batched gradients (vmap)")
    group.add_argument(
        "--compiled", action="store_true", help="compare the gradients under torch.compile"
    )
    group.add_argument(
        "--time-limit",
        type=seconds,
        metavar="SECONDS",
        help="begin nothing more after so long; 90, 90s, 2m and 1h are times",
    )
    group.add_argument(
        "--max-memory",
        type=_bytes,
        default=2**30,
        metavar="SIZE",
        help="memory that --full may take at a time; 512M and 2G are sizes (default: 1G)",
    )


def _bytes(text: str) -> int:
    """Read a size, such as 1048576, 512M or 2GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    power = " kmgt".index(found[2] or " ") if found else 0
    size = int(float(found[1]) * 1024**power) if found else 0
    if size < 1:
        raise argparse.ArgumentTypeError(
            f"expected a size of at least 1 byte, such as 1048576, 512M or 2G, got {text!r}"
        )
    return size


def run(arguments: argparse.Namespace) -> int:
    """Check the gradients, write the report and return the exit status."""
    subject = load_subject(arguments)
    return run_check(arguments, lambda: _check(subject, arguments))


def _check(subject: Subject, arguments: argparse.Namespace) -> Report:
    from gradcheck_suite.verification.check import check_with  # noqa: PLC0415 - needs torch
    from gradcheck_suite.verification.options import CheckOptions  # noqa: PLC0415 - as above

    options = CheckOptions.validated(
        parameters=arguments.parameters,
        dtype=arguments.dtype,
        probes=arguments.probes,
        seed=arguments.seed,
        skip_outputs=arguments.skip_output,
        order=arguments.order,
        full=arguments.full,
        variations=_names(arguments.variations),
        forward_mode=arguments.forward_mode,
        batched=arguments.batched,
        compiled=arguments.compiled,
        time_limit=arguments.time_limit,
        max_memory=arguments.max_memory,
        localize_by=_localize_by(arguments),
    )
    return check_with(subject.target, subject.inputs, subject.kwargs, options)


def _localize_by(arguments: argparse.Namespace) -> str:
    """Return the command that looks for the wrong call inside of the target."""
    seed = ["--seed", str(arguments.seed)] if arguments.seed else []
    return shlex.join(
        ["gradcheck-suite", "localize", arguments.target, "--inputs", arguments.inputs, *seed]
    )


def _names(listed: str | None) -> list[str] | None:
    """Split names at commas; "none" is no name, and None leaves the choice to the check."""
    if listed is None:
        return None
    names = [name.strip() for name in listed.split(",") if name.strip()]
    return [] if names == ["none"] else names
