"""The ``gradcheck-suite`` command."""

from __future__ import annotations

import argparse
import sys
from traceback import walk_tb
from typing import TYPE_CHECKING

from gradcheck_suite._exit import exit_status
from gradcheck_suite._frames import Owner, owner_of_file
from gradcheck_suite._version import __version__
from gradcheck_suite.commands import audit, demo, explain, graph, localize, rules, verify
from gradcheck_suite.commands._user_errors import user_traceback
from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting.paths import display_path

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG = """\
exit status: 0 nothing found, 1 findings at or above --fail-on, 2 usage,
configuration or internal failure. audit keeps the script's own status.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gradcheck-suite`` with these arguments and return its exit status."""
    arguments = _build_parser().parse_args(argv)
    # The user's code may put another in its place.
    arguments.stdout = sys.stdout
    return exit_status(
        "gradcheck-suite",
        lambda: _run(arguments),
        explain=lambda error: _not_our_fault(error, arguments.command),
    )


def _run(arguments: argparse.Namespace) -> int:
    try:
        status: int = arguments.run(arguments)
    except SystemExit as stop:
        # Nothing was checked, whatever status the user's code has asked for.
        raise UsageError(
            f"{arguments.command} stopped because your code ended the process: "
            f"sys.exit({stop.code!r}){_last_of_the_user(stop)}. Expected code that returns; what "
            'a file does as a script belongs under `if __name__ == "__main__":`'
        ) from stop
    return status


def _last_of_the_user(error: BaseException) -> str:
    places = [
        f" at {display_path(frame.f_code.co_filename)}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if owner_of_file(frame.f_code.co_filename) is Owner.USER
    ]
    return places[-1] if places else ""


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradcheck-suite",
        description="Find the autograd mistakes that raise nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gradcheck-suite {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", required=True)
    for command in (audit, verify, localize, graph, demo, explain, rules):
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
