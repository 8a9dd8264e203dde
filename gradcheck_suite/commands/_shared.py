"""Options that several commands share, and what becomes of a finished report."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

from gradcheck_suite._runtime.exit_codes import (
    CLEAN,
    FINDINGS,
    INTERRUPTED,
    own_output,
    reader_may_leave,
    stop_writing,
)
from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting import OUTPUT_FORMATS, write_report, write_report_file
from gradcheck_suite.reporting.progress import progress
from gradcheck_suite.reporting.summary import conclusion
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite.findings import Report
    from gradcheck_suite.verification.progress import Watcher

# argparse gives this type no public name.
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001

NEVER = "never"


def add_report_options(
    parser: argparse.ArgumentParser, *, fail_on: str = Severity.ERROR.value
) -> None:
    """Add the options on how a report is written and what makes the command fail.

    ``fail_on`` is the default of ``--fail-on``: a severity, or "never".
    """
    group = parser.add_argument_group("report")
    group.add_argument(
        "--output-format",
        choices=OUTPUT_FORMATS,
        metavar="FORMAT",
        default="full",
        help=f"how the report is written: {', '.join(OUTPUT_FORMATS)} (default: full)",
    )
    group.add_argument(
        "--output-file",
        type=Path,
        metavar="FILE",
        help="write the report to FILE instead of standard output",
    )
    group.add_argument(
        "--fail-on",
        choices=[*(severity.value for severity in Severity), NEVER],
        default=fail_on,
        help="exit with status 1 if a finding is at least this severe (default: %(default)s)",
    )
    group.add_argument(
        "--diff-against",
        type=Path,
        metavar="FILE",
        help="leave out what FILE has, a report that was written earlier with --output-format json",
    )
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the report (default: auto, which colours a terminal)",
    )


def seconds(text: str) -> float:
    """Read a time, such as 90, 90s, 1.5m or 1h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    read = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if read <= 0.0:
        raise argparse.ArgumentTypeError(
            f"expected a time of more than 0, such as 90, 90s, 2m or 1h, got {text!r}"
        )
    return read


def add_reproduce_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--reproduce`` to a command that checks gradients."""
    parser.add_argument(
        "--reproduce",
        type=Path,
        metavar="FILE",
        help="write a script of its own that shows the first thing found, with inputs as small as "
        "still fail: what one attaches to a bug report",
    )


def run_check(arguments: argparse.Namespace, check: Callable[[], Report]) -> int:
    """Run a check that says how far it is, write its report, and return the exit status.

    After Ctrl-C the report is on what was concluded until then.
    """
    from gradcheck_suite.verification.progress import (  # noqa: PLC0415 - needs torch
        Watcher,
        watched_by,
    )

    what = f"Checking {arguments.target}"
    watcher: Watcher | None = None
    try:
        with progress(what) as bar:
            watcher = Watcher(lambda doing: bar.describe(f"{what}: {doing}"))
            with watched_by(watcher):
                report = check()
    except KeyboardInterrupt:
        partial = None if watcher is None else watcher.report()
        if watcher is None or partial is None:
            raise
        emit(partial, arguments)
        sys.stdout.flush()
        sys.stderr.write(f"gradcheck-suite: interrupted at: {watcher.doing}\n")
        return INTERRUPTED
    status = emit(report, arguments)
    if arguments.reproduce is not None and report.reproduction is not None:
        sys.stdout.flush()
        with progress("Making the inputs small"):
            report.save_reproduction(arguments.reproduce)
        sys.stderr.write(f"gradcheck-suite: wrote {arguments.reproduce}, which shows it\n")
    return status


def emit(
    report: Report,
    arguments: argparse.Namespace,
    *,
    before: Callable[[TextIO], object] | None = None,
) -> int:
    """Write ``report`` where and how the options say, and return the exit status.

    ``before`` writes to standard output what comes before the report.

    Raises:
        UsageError: the earlier report cannot be read, or the output file cannot be written, or
            standard output, as on a full disk. The report then goes to standard output, or
            standard error, so that it is not lost.
    """
    if arguments.diff_against is not None:
        from gradcheck_suite.reporting.fingerprints import without_known  # noqa: PLC0415 - rare

        report = without_known(report, arguments.diff_against)
    fails = arguments.fail_on != NEVER and report.at_least(Severity(arguments.fail_on))
    with own_output(arguments.stdout):
        _write(report, arguments, before)
    return FINDINGS if fails else CLEAN


def _write(
    report: Report, arguments: argparse.Namespace, before: Callable[[TextIO], object] | None
) -> None:
    path: Path | None = arguments.output_file
    try:
        with reader_may_leave():
            if before is not None:
                before(sys.stdout)
            if path is None:
                write_report(
                    report,
                    output_format=arguments.output_format,
                    stream=sys.stdout,
                    color=arguments.color,
                )
            sys.stdout.flush()
    except OSError as error:
        stop_writing()
        write_report(report, output_format="full", stream=sys.stderr, color=arguments.color)
        raise UsageError(
            f"cannot write the report to standard output: {error.strerror or error}; it is on "
            "standard error instead. Give --output-file a path in a folder that can be written"
        ) from error
    if path is not None:
        _write_file(report, path, arguments)


def _write_file(report: Report, path: Path, arguments: argparse.Namespace) -> None:
    try:
        write_report_file(
            report, path, output_format=arguments.output_format, color=arguments.color
        )
    except OSError as error:
        write_report(report, output_format="full", stream=sys.stdout, color=arguments.color)
        raise UsageError(
            f"cannot write the report to {path}: {error.strerror or error}; it is printed above "
            "instead. Give --output-file a path in a folder that exists and can be written"
        ) from error
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{conclusion(report)}; the report is in {path}\n")
