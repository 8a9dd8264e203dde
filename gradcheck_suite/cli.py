"""The ``gradcheck-suite`` command."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from gradcheck_suite._exit import exit_status
from gradcheck_suite._version import __version__
from gradcheck_suite.commands import audit, demo, explain, graph, rules, verify
from gradcheck_suite.commands._user_errors import user_traceback

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG = """\
exit status: 0 nothing found, 1 findings at or above --fail-on, 2 usage,
configuration or internal failure. audit keeps the script's own status.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gradcheck-suite`` with these arguments and return its exit status."""
    arguments = _build_parser().parse_args(argv)
    return exit_status(
        "gradcheck-suite",
        lambda: arguments.run(arguments),
        explain=lambda error: _not_our_fault(error, arguments.command),
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradcheck-suite",
        description="Find the autograd mistakes that raise nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gradcheck-suite {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", required=True)
    for command in (audit, verify, graph, demo, explain, rules):
        command.add_parser(subparsers)
    return parser


def _not_our_fault(error: Exception, command: str) -> str | None:
    theirs = user_traceback(error)
    if theirs is not None:
        sys.stderr.write(theirs)
        return f"{command} stopped at the {type(error).__name__} above, raised by your code"
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return (
            f"{command} needs PyTorch, which is not installed here; "
            "install it with: pip install 'gradcheck-suite[torch]'"
        )
    return None
