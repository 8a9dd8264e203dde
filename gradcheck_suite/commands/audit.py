"""``gradcheck-suite audit``: run a training script and say what went wrong in it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gradcheck_suite.commands._shared import Subparsers, add_report_options, emit

if TYPE_CHECKING:
    from gradcheck_suite.auditing.script import ScriptOutcome
    from gradcheck_suite.findings import Report

_DESCRIPTION = """\
Run SCRIPT unchanged, as `python SCRIPT ARGS` would, and report what corrupted,
kept or misordered its gradients. The report follows the script's own output;
--output-file keeps the two apart. Options after SCRIPT are the script's.
"""
_EPILOG = """\
exit status: the script's own if it is not 0, else 1 if there are findings at or
above --fail-on, else 0; 2 if SCRIPT cannot be run. SIGUSR1 asks for the report
so far; SIGTERM ends the script with a report.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``audit`` to the commands."""
    parser = subparsers.add_parser(
        "audit",
        help="run a training script and report its autograd mistakes",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [OPTIONS] SCRIPT [ARGS...]\n       %(prog)s [OPTIONS] -m MODULE [ARGS...]",
    )
    add_report_options(parser)
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="run a module, as python -m does",
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        metavar="N",
        help="watch the first N steps only; the script runs on to its end",
    )
    parser.add_argument("target", metavar="SCRIPT", help="the script (or, with -m, the module)")
    parser.add_argument(
        "arguments",
        metavar="ARGS",
        nargs=argparse.REMAINDER,
        help="its own arguments",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the script, write the report, and return the exit status."""
    from gradcheck_suite.auditing.options import options_from  # noqa: PLC0415 - needs torch
    from gradcheck_suite.auditing.script import audit_script  # noqa: PLC0415 - needs torch

    def report(outcome: ScriptOutcome) -> int:
        return emit(outcome.report, arguments)

    def report_so_far(so_far: Report) -> None:
        emit(so_far, arguments)

    outcome = audit_script(
        arguments.target,
        arguments.arguments,
        as_module=arguments.module,
        options=options_from({"max_steps": arguments.max_steps}),
        on_abrupt_exit=report,
        on_request=report_so_far,
    )
    found = report(outcome)
    return outcome.exit_status or found
