"""Write what a run came to: the report, the counts, the diff."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, TextIO

from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from pathlib import Path

    from gradcheck_suite.findings import Finding, Report


def say(message: str) -> None:
    """Write a line of the command's own on standard error."""
    sys.stderr.write(f"gradcheck-lint: {message}\n")


def write(report: Report, arguments: argparse.Namespace, stream: TextIO | None = None) -> None:
    """Write the report where the options say, or to ``stream``."""
    output_format = arguments.output_format
    if arguments.output_file is not None:
        _write_file(
            report,
            arguments.output_file,
            output_format or "concise",
            arguments.color,
            quiet=arguments.quiet,
        )
        return
    out: TextIO = sys.stdout if stream is None else stream
    if output_format is None:
        output_format = "full" if out.isatty() else "concise"
    for_people = output_format in {"full", "concise"}
    if arguments.quiet and for_people and not report.findings:
        return
    _write_to(out, report, output_format, arguments.color)
    if arguments.statistics and for_people:
        out.write(_statistics(report.findings))


def _statistics(findings: Iterable[Finding]) -> str:
    counts = Counter((finding.code, finding.rule) for finding in findings)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{count:>6}  {code}  {rule}\n" for (code, rule), count in ordered)


def write_diff(changes: Iterable[tuple[str, bytes, bytes]]) -> None:
    """Write on standard output what fixes change, as patch reads it."""
    from gradcheck_lint.fixes import unified_diff  # noqa: PLC0415 - needs libcst
    from gradcheck_suite.reporting.text import encodable  # noqa: PLC0415 - on demand

    for path, before, after in changes:
        sys.stdout.write(encodable(unified_diff(before, after, path), sys.stdout.encoding))


def _write_file(report: Report, path: Path, output_format: str, color: str, *, quiet: bool) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            _write_to(stream, report, output_format, "never" if color == "auto" else color)
    except OSError as error:
        _write_to(sys.stdout, report, "concise", "never")
        raise UsageError(
            f"cannot write the report to {path}: {error.strerror or error}; it is printed above "
            "instead. Give --output-file a path in a folder that exists and can be written"
        ) from error
    if report.findings or not quiet:
        from gradcheck_suite.reporting.summary import conclusion  # noqa: PLC0415 - on demand

        sys.stderr.write(f"{conclusion(report)}; the report is in {path}\n")


def _write_to(stream: TextIO, report: Report, output_format: str, color: str) -> None:
    from gradcheck_suite.reporting import write_report  # noqa: PLC0415 - not for --help

    write_report(report, output_format=output_format, stream=stream, color=color)  # type: ignore[arg-type]  # argparse checked both
