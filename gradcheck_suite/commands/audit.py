"""``gradcheck-suite audit``: run a training script and say what went wrong in it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.exit_codes import CLEAN
from gradcheck_suite._runtime.scripts import refuse_no_script
from gradcheck_suite.commands._shared import Subparsers, add_report_options, emit
from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting import OutputFormat, write_report
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.silencing import split_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.auditing.distributed.rank_reports import RankReports
    from gradcheck_suite.auditing.script import ScriptOutcome
    from gradcheck_suite.findings import Report

_DESCRIPTION = """\
Run SCRIPT unchanged, as `python SCRIPT ARGS` would, and report what corrupted,
kept or misordered its gradients. Of a notebook (.ipynb), the code cells run.
The report follows the script's own output; --output-file keeps the two apart.
Options after SCRIPT are the script's. On a terminal, a status line tells how
far it has come.
"""
_EPILOG = """\
exit status: the script's own if it is not 0, else 1 if there are findings at or
above --fail-on, else 0; 2 if SCRIPT cannot be run. SIGUSR1 asks for the report
so far, on standard error; SIGTERM, SIGHUP and SIGQUIT end the script with a
report.
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
    parser.add_argument(
        "--overhead",
        type=float,
        metavar="PERCENT",
        default=5.0,
        help="how much the audit may add to the time of a step: where it adds more, it passes over "
        "some, after the first 200 and while all is well; inf watches each (default: %(default)s)",
    )
    parser.add_argument(
        "--ignore",
        metavar="CODES",
        default="",
        help="do not tell these mistakes, separated by commas: codes or names, such as GCS702; a "
        "comment `# gradcheck: ignore[GCS702]` on the line does so for one place",
    )
    parser.add_argument(
        "--watch-writers",
        metavar="WHEN",
        default="after_corruption",
        help="when to watch line by line who overwrites saved tensors: after_corruption (the "
        "default), on the steps after one in which that was found; from_start, for code that runs "
        "once; or never",
    )
    parser.add_argument(
        "--stream",
        metavar="FILE",
        help="also append each finding to FILE, as one line of JSON, the moment it is known: a "
        "process that is killed loses none",
    )
    parser.add_argument(
        "--wait-for-ranks",
        type=float,
        metavar="SECONDS",
        default=60.0,
        help="where many processes train together (torchrun), how long rank 0 waits at its end for "
        "the reports of the others, which it tells with its own (default: %(default)s)",
    )
    parser.add_argument(
        "--compare-optimizer-state",
        action="store_true",
        help="where many processes train together, compare the state of optimizers as well, such "
        "as moments, and not only parameters and gradients",
    )
    parser.add_argument(
        "--no-status",
        dest="status",
        action="store_false",
        help="show no status line on the terminal while SCRIPT runs",
    )
    parser.add_argument(
        "target", metavar="SCRIPT", help="the script or notebook (or, with -m, the module)"
    )
    own = parser.add_argument(
        "arguments",
        metavar="ARGS",
        nargs=argparse.REMAINDER,
        help="its own arguments",
    )
    # argparse would name them with SCRIPT when that is missing.
    own.required = False
    named = (each for action in parser._actions for each in action.option_strings)  # noqa: SLF001 - argparse names them nowhere else
    options = frozenset(each for each in named if each.startswith("--")) - {"--help"}
    parser.set_defaults(run=run, own_options=options)


def run(arguments: argparse.Namespace) -> int:
    """Run the script, write the report, and return the exit status."""
    # Before torch is loaded, which takes seconds.
    if not arguments.module:
        refuse_no_script(arguments.target)
    for name in split_names(arguments.ignore):
        if catalogue.find(name) is None:
            raise UsageError(f"audit: --ignore has {catalogue.unknown(name)}")
    from gradcheck_suite.auditing.options import options_from  # noqa: PLC0415 - needs torch
    from gradcheck_suite.auditing.script import audit_script  # noqa: PLC0415 - needs torch

    _note_misplaced(arguments)
    _note_unread_tables()
    process = os.getpid()

    def report(outcome: ScriptOutcome) -> int:
        if outcome.ranks is None:
            return _write(outcome.report, arguments, rank=0)
        return _report_of_ranks(outcome, outcome.ranks, arguments)

    def report_at_once(outcome: ScriptOutcome) -> int:
        status = report(outcome)
        if outcome.ranks is not None:
            outcome.ranks.leave()
        return status

    def report_so_far(so_far: Report) -> None:
        _write_so_far(so_far, arguments)

    outcome = audit_script(
        arguments.target,
        arguments.arguments,
        as_module=arguments.module,
        options=options_from(
            {
                "max_steps": arguments.max_steps,
                "overhead": arguments.overhead,
                "ignore": split_names(arguments.ignore),
                "stream": arguments.stream,
                "wait_for_ranks": arguments.wait_for_ranks,
                "compare_optimizer_state": arguments.compare_optimizer_state,
                "watch_writers": arguments.watch_writers,
            }
        ),
        on_abrupt_exit=report_at_once,
        on_request=report_so_far,
        show_status=arguments.status,
    )
    if os.getpid() != process:
        # A forked child has come to the end of the script; the report is its parent's.
        return outcome.exit_status
    found = report(outcome)
    return outcome.exit_status or found


def _write(report: Report, arguments: argparse.Namespace, *, rank: int) -> int:
    options = argparse.Namespace(**vars(arguments))
    if options.output_file is not None:
        options.output_file = Path(str(options.output_file).replace("{rank}", str(rank)))
    # The script's own output comes right before.
    spaced = options.output_file is None and options.output_format == "full"
    return emit(report, options, before=(lambda stream: stream.write("\n")) if spaced else None)


def _report_of_ranks(
    outcome: ScriptOutcome, ranks: RankReports, arguments: argparse.Namespace
) -> int:
    """Tell of all ranks on one of them, and return the status that the findings ask for.

    Launchers end the other ranks as soon as one exits with a status of its own, so that they lose
    what they have not written yet: the findings' status is told last, by rank 0.
    """
    from gradcheck_suite.auditing.output.report_delivery import say  # noqa: PLC0415 - as below
    from gradcheck_suite.auditing.script import reporting_signals  # noqa: PLC0415 - needs torch

    rank = ranks.job.rank

    def tell_at_once(_number: int) -> None:
        whole = ranks.conclude(outcome.report, failed=True, at_once=True)
        if whole is not None:
            _write(whole, arguments, rank=rank)

    with reporting_signals(tell_at_once, _do_nothing):
        whole = ranks.conclude(outcome.report, failed=outcome.exit_status != 0)
    if whole is None:
        if "{rank}" in str(arguments.output_file):
            _write(outcome.report, arguments, rank=rank)
        return CLEAN
    status = _write(whole, arguments, rank=rank)
    ranks.told()
    if outcome.exit_status or not status or ranks.others_are_gone():
        return status
    say("exit status 0 in spite of the findings: other ranks are at work, and would be ended")
    return CLEAN


def _do_nothing() -> None:
    """Go on: a report so far says nothing that the one at the end does not."""


def _note_misplaced(arguments: argparse.Namespace) -> None:
    """Say that an option which stands after the script is not the audit's."""
    words = arguments.arguments
    given = (word.partition("=")[0] for word in words[: (*words, "--").index("--")])
    option = next((each for each in given if each in arguments.own_options), None)
    if option is None:
        return
    try:
        source = b"" if arguments.module else Path(arguments.target).read_bytes()
    except (OSError, ValueError):
        return  # which is told of as soon as it is to run
    if option.encode() in source:
        return  # the script has one of that name itself
    module = "-m " if arguments.module else ""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(
            f"gradcheck-suite: note: {option} stands after {arguments.target} and goes to it; "
            f"one for the audit stands before it: gradcheck-suite audit {option} ... {module}"
            f"{arguments.target}\n"
        )


_TABLE = re.compile(
    r"""^[ \t]*\[\[?\s*tool\.["']?gradcheck-suite["']?\.["']?([\w-]+)""", re.MULTILINE
)


def _note_unread_tables() -> None:
    """Say of a table in pyproject.toml that may be meant for the audit that nobody reads it."""
    try:
        here = Path.cwd()
        file = next(each for each in _configurations(here) if each.is_file())
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError, StopIteration):
        return
    for name in sorted({match[1] for match in _TABLE.finditer(text)} - {"lint", "pytest"}):
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(
                f"gradcheck-suite: note: nothing reads [tool.gradcheck-suite.{name}] in "
                f"{display_path(str(file))}: the audit has its options from the command line (see "
                "gradcheck-suite audit --help), and the tables are lint and pytest\n"
            )


def _configurations(folder: Path) -> Iterator[Path]:
    return (each / "pyproject.toml" for each in (folder, *folder.parents))


def _write_so_far(report: Report, arguments: argparse.Namespace) -> None:
    """Write the report of a script that runs on to standard error, as text.

    Standard output and the output file are for the one report at the end, which programs read.
    """
    output_format: OutputFormat = "concise" if arguments.output_format == "concise" else "full"
    steps = report.summary.get("steps")
    at_the_end = arguments.output_file or "standard output"
    with suppress(OSError, ValueError):
        sys.stderr.write(
            f"\ngradcheck-suite audit: report so far, after {steps} steps, as SIGUSR1 asked; the "
            f"one at the end goes to {at_the_end}\n"
        )
        write_report(report, output_format=output_format, stream=sys.stderr, color=arguments.color)
