"""``gradcheck-suite doctor``: what works in this environment, and what does not and why."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradcheck_suite._runtime.exit_codes import CLEAN, FINDINGS, writing_output
from gradcheck_suite._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.commands._shared import Subparsers
    from gradcheck_suite.setup.installation import Check, Installation

SCHEMA_VERSION: Final = 1
_PARTS: Final = (
    *("lint", "run-time", "pytest", "settings", "pre-commit", "cache", "terminal"),
    *("png", "tensorboard", "strategies", "completion", "lsp"),
    *("lightning", "transformers", "accelerate", "ignite"),
)
_DESCRIPTION = """\
Try each part of gradcheck-suite in this environment, and say which versions
are installed, what works, what does not, why, and what to do. It needs no
torch, and runs nothing of yours but pytest's own start.
"""
_EPILOG = """\
exit status: 0 if all that was asked for works, 1 otherwise. Where no part is
named, lint and run-time are asked for; of the others, what is set up has to
work. A part that is named has to be there.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command and its options."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what works in this environment, what does not, and why",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"try these parts alone: {', '.join(_PARTS)} (default: all)",
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "json"),
        default="text",
        help="how the answer is written (default: text)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Try the parts, write what became of them, and return the exit status.

    Raises:
        UsageError: there is no such part.
    """
    from gradcheck_suite.reporting.progress import progress  # noqa: PLC0415 - on demand
    from gradcheck_suite.reporting.text import encodable  # noqa: PLC0415 - on demand
    from gradcheck_suite.setup.installation import examine  # noqa: PLC0415 - on demand

    _refuse_unknown(arguments.parts)
    with progress("Trying what works here"):
        found = examine(Path.cwd(), frozenset(arguments.parts))
    text = _json(found) if arguments.output_format == "json" else _text(found)
    with writing_output():
        sys.stdout.write(encodable(text, sys.stdout.encoding))
        sys.stdout.flush()
    return CLEAN if found.ok else FINDINGS


def _refuse_unknown(parts: list[str]) -> None:
    from gradcheck_suite.errors import UsageError  # noqa: PLC0415 - rare

    for part in parts:
        if part not in _PARTS:
            raise UsageError(f"doctor knows no part {part!r}; expected {', '.join(_PARTS)}")


def _json(found: Installation) -> str:
    import json  # noqa: PLC0415 - on demand
    from dataclasses import asdict  # noqa: PLC0415 - as above

    document = {
        "schema": SCHEMA_VERSION,
        "tool": "gradcheck-suite doctor",
        "version": __version__,
        "ok": found.ok,
        "versions": [asdict(version) for version in found.versions],
        "checks": [{**asdict(check), "asked": check.part in found.asked} for check in found.checks],
    }
    return json.dumps(document, indent=2) + "\n"


def _text(found: Installation) -> str:
    width = max(len(version.name) for version in found.versions)
    lines = [
        f"  {version.name:<{width}}  {version.version or 'not installed'}"
        + (f"  {version.path}" if version.path else "")
        for version in found.versions
    ]
    lines.append("")
    lines += [line for check in found.checks for line in _told(check)]
    lines += ["", _conclusion(found)]
    return "".join(f"{line}\n" for line in lines)


def _told(check: Check) -> Iterator[str]:
    from gradcheck_suite.reporting.text import one_line  # noqa: PLC0415 - on demand

    yield f"  {check.status:<7}  {check.part}: {one_line(check.message)}"
    if check.hint is not None:
        yield f"  {'':<7}  -> {one_line(check.hint)}"


def _conclusion(found: Installation) -> str:
    if found.ok:
        return "All that was asked for works."
    broken = [
        check.part
        for check in found.checks
        if check.status == "fails" or (check.status == "absent" and check.part in found.asked)
    ]
    return f"Does not work: {', '.join(broken)}."
