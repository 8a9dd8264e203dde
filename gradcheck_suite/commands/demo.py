"""``gradcheck-suite demo``: each part at work on a real training script with planted mistakes."""

from __future__ import annotations

import argparse
import contextlib
import importlib.resources
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gradcheck_suite._runtime.exit_codes import CLEAN, INTERRUPTED, writing_output
from gradcheck_suite.commands._shared import NEVER, Subparsers, add_report_options, emit
from gradcheck_suite.commands._targets import load_target
from gradcheck_suite.commands.graph import print_graph
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from gradcheck_suite.findings import Report
    from gradcheck_suite.reporting import ColorChoice

_DESCRIPTION = """\
Train a small convolutional network on 1,797 images of handwritten digits with
a script that holds eight planted mistakes, and tell what each part of
gradcheck-suite finds in it: a mistake may be several findings. The script and
its repaired twin are in examples/digits.
"""
_EPILOG = """\
exit status: 0 whatever is found, 1 if --fail-on asks for it and findings are
that severe, 2 if the demo can't run, 130 after Ctrl-C.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``demo`` to the commands."""
    parser = subparsers.add_parser(
        "demo",
        help="find the planted mistakes in a real training script",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--fixed", action="store_true", help="run the repaired script, of which nothing is said"
    )
    # The demo has done its work when it finds mistakes: it fails on them only if asked to.
    add_report_options(parser, fail_on=NEVER)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Lint, audit, verify and picture the example, write one report, return the exit status."""
    shown: list[Report] = []
    with writing_output():
        shown.append(_shown(arguments))
    # There is none when the reader of the output has left.
    return emit(shown[0], arguments) if shown else CLEAN


def _shown(arguments: argparse.Namespace) -> Report:
    """Let each part work, tell of it if people read that, and return one report of all."""
    from gradcheck_suite.findings import merge_reports  # noqa: PLC0415 - on demand
    from gradcheck_suite.reporting.paths import display_path  # noqa: PLC0415 - on demand

    script = str(_folder() / ("train_fixed.py" if arguments.fixed else "train.py"))
    shown = display_path(script)
    # Machines read the report alone; people see the parts at work before it.
    stream = sys.stdout if arguments.output_format == "full" else io.StringIO()

    def announce(command: str, part: str = "") -> None:
        _rule(command, stream, arguments.color, file=shown, part=part)

    announce("gradcheck-lint")
    linted = _lint(script, stream)
    announce("gradcheck-suite audit")
    with contextlib.redirect_stdout(stream):
        audited = _audit(script)
    announce("gradcheck-suite verify", ":Swish")
    verified = _verify(script, stream)
    announce("gradcheck-suite graph", ":one_loss")
    pictured = _picture(script, stream, arguments.color)
    _rule("The report", stream, arguments.color)
    # What was seen to happen comes before what was read in the source.
    return merge_reports("gradcheck-suite demo", (audited, verified, linted, pictured))


def _folder() -> Path:
    """Return where the example lies: in an installed wheel, or beside the package in a clone."""
    package = Path(str(importlib.resources.files("gradcheck_suite")))
    places = (package / "_examples" / "digits", package.parent / "examples" / "digits")
    for place in places:
        if (place / "digits.csv.gz").is_file():
            return place
    raise UsageError(
        f"the demo's example is neither at {places[0]} nor at {places[1]}; "
        "install gradcheck-suite again, or run the demo from a clone"
    )


def _lint(script: str, stream: TextIO) -> Report:
    from gradcheck_lint.engine import lint_source  # noqa: PLC0415 - on demand
    from gradcheck_suite.findings import Report  # noqa: PLC0415 - on demand

    findings = lint_source(Path(script).read_bytes(), script)
    report = Report("gradcheck-lint", findings, summary={"files": 1})
    _tell(report, stream)
    return report


def _audit(script: str) -> Report:
    from gradcheck_suite.auditing.script import audit_script  # noqa: PLC0415 - needs torch

    with _quiet_about_ctrl_c():
        outcome = audit_script(script)
    if outcome.exit_status == INTERRUPTED:
        raise KeyboardInterrupt
    if outcome.exit_status:
        raise UsageError(
            f"the demo's training script {script} ended with status {outcome.exit_status}, "
            "expected 0; what it said is above"
        )
    _tell(outcome.report, sys.stdout)
    return outcome.report


@contextlib.contextmanager
def _quiet_about_ctrl_c() -> Iterator[None]:
    """Show no traceback of a script that is not the reader's own."""
    show = sys.excepthook

    def show_others(
        kind: type[BaseException], error: BaseException, where: TracebackType | None
    ) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            show(kind, error, where)

    sys.excepthook = show_others
    try:
        yield
    finally:
        sys.excepthook = show


def _verify(script: str, stream: TextIO) -> Report:
    from gradcheck_suite.verification import check_gradients  # noqa: PLC0415 - needs torch

    report = check_gradients(load_target(f"{script}:Swish"), _call(f"{script}:swish_inputs"))
    _tell(report, stream)
    return report


def _picture(script: str, stream: TextIO, color: ColorChoice) -> Report:
    from gradcheck_suite.graph import trace_graph  # noqa: PLC0415 - needs torch

    loss, model = _call(f"{script}:one_loss")
    graph = trace_graph(loss, model=model)
    print_graph(graph, stream, color=color)
    return graph.report


def _tell(report: Report, stream: TextIO) -> None:
    """Say shortly what a part found; the whole report comes last."""
    from gradcheck_suite.reporting.summary import verdict_and_remarks  # noqa: PLC0415 - on demand

    sentence, remarks = verdict_and_remarks(report)
    stream.write(f"{sentence}\n" + (f"  {remarks}\n" if remarks else ""))


def _call(target: str) -> Any:
    function: Any = load_target(target)
    return function()


def _rule(
    title: str, stream: TextIO, color: ColorChoice, *, file: str = "", part: str = ""
) -> None:
    """Write a heading; the path of a file that does not fit in is on a line of its own."""
    from rich.cells import cell_len  # noqa: PLC0415 - on demand
    from rich.text import Text  # noqa: PLC0415 - on demand

    from gradcheck_suite.reporting.console import open_console  # noqa: PLC0415 - on demand

    console = open_console(stream, force_terminal=True if color == "always" else None)
    if color == "never":
        console.no_color = True
    whole = f"{title} {file}{part}" if file else title
    fits = cell_len(whole) <= console.width - len(" ─")
    heading = whole if fits or not file else f"{title} {Path(file).name}{part}"
    # Where the reader has gone, rich would end the process with a status of its own.
    with console.capture() as drawn:
        console.print()
        console.rule(Text(heading, "bold"), align="left", style="dim")
    stream.write(drawn.get() + ("" if heading == whole else f"{file}\n"))
