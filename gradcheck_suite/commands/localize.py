"""``gradcheck-suite localize``: find the call in a deep model whose gradient is wrong."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gradcheck_suite.commands._shared import (
    Subparsers,
    add_report_options,
    add_reproduce_option,
    run_check,
    seconds,
)
from gradcheck_suite.commands._targets import (
    Subject,
    add_subject_options,
    load_subject,
    load_target,
    refuse_coroutine,
)

if TYPE_CHECKING:
    from gradcheck_suite.findings import Report

_DESCRIPTION = """\
Run a model once, probe every custom Function, leaf module and op in it with the
inputs that it really gets, and name the innermost call whose gradient is wrong:
where in the model, which of several calls, and its line. INPUTS names a
function without arguments that makes the inputs, as for verify.
"""
_EPILOG = """\
exit status: 0 nothing wrong, 1 findings at or above --fail-on, 2 if the model
could not be run, 130 after Ctrl-C, with a report of what was concluded until
then.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``localize`` to the commands."""
    parser = subparsers.add_parser(
        "localize",
        help="find the call in a deep model whose gradient is wrong",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject_options(
        parser, target="a module instance, a function that makes one, or a function of the inputs"
    )
    parser.add_argument(
        "--loss",
        metavar="FILE.py:LOSS",
        help="a function of what the model returns, whose calls are looked at as well",
    )
    parser.add_argument(
        "--level",
        choices=("auto", "functions", "modules", "calls", "tree"),
        default="auto",
        help="what is probed: custom Functions, leaf modules as well, custom Functions and every "
        "op, or all modules from the root down (default: auto, one after the other until something "
        "is found)",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="SECONDS",
        help="begin nothing more after so long; 90, 90s, 2m and 1h are times",
    )
    add_reproduce_option(parser)
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look for the wrong call, write the report and return the exit status."""
    subject = load_subject(arguments)
    loss: Any = None
    if arguments.loss is not None:
        loss = load_target(arguments.loss)
        refuse_coroutine(loss, f"--loss {arguments.loss}")
    return run_check(arguments, lambda: _localize(subject, loss, arguments))


def _localize(subject: Subject, loss: Any, arguments: argparse.Namespace) -> Report:
    from gradcheck_suite.verification import localize  # noqa: PLC0415 - needs torch

    return localize(
        subject.target,
        subject.inputs,
        subject.kwargs,
        loss,
        level=arguments.level,
        seed=arguments.seed,
        time_limit=arguments.time_limit,
    )
