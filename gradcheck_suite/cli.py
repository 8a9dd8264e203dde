"""The ``gradcheck-suite`` command."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from typing import TYPE_CHECKING

from gradcheck_suite._version import __version__
from gradcheck_suite.commands import audit, demo, explain, graph, rules, verify
from gradcheck_suite.commands._shared import INTERRUPTED, USAGE
from gradcheck_suite.commands._user_errors import user_traceback
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG = """\
exit status: 0 nothing found, 1 findings at or above --fail-on, 2 usage,
configuration or internal failure. audit keeps the script's own status.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gradcheck-suite`` with these arguments and return its exit status."""
    arguments = _build_parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("gradcheck-suite: interrupted", file=sys.stderr)  # noqa: T201 - a command's words
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - whatever the user's file raises
        return _fail_on_exception(error, arguments)
    return status


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


def _fail(message: str) -> int:
    print(f"gradcheck-suite: error: {message}", file=sys.stderr)  # noqa: T201 - a command's words
    return USAGE


def _fail_on_exception(error: Exception, arguments: argparse.Namespace) -> int:
    theirs = user_traceback(error)
    if theirs is not None:
        print(theirs, end="", file=sys.stderr)  # noqa: T201 - a command's words
        return _fail(
            f"{arguments.command} stopped at the {type(error).__name__} above, raised by your code"
        )
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return _fail(
            f"{arguments.command} needs PyTorch, which is not installed here; "
            "install it with: pip install 'gradcheck-suite[torch]'"
        )
    if os.environ.get("GRADCHECK_SUITE_TRACEBACK"):
        traceback.print_exception(error)
    return _fail(
        f"internal error in {arguments.command}: {type(error).__name__}: {error}. This is a bug "
        "in gradcheck-suite; please report it with what GRADCHECK_SUITE_TRACEBACK=1 makes it print"
    )
