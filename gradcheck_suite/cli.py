"""The ``gradcheck-suite`` command."""

from __future__ import annotations

import argparse
import difflib
import sys
import traceback
from typing import TYPE_CHECKING

from gradcheck_suite._completion import add_completion_option
from gradcheck_suite._runtime.exit_codes import USAGE, exit_status
from gradcheck_suite._runtime.frames import Owner, is_ours, owner_of_file, without_ours
from gradcheck_suite._version import __version__
from gradcheck_suite.commands import (
    audit,
    demo,
    doctor,
    explain,
    graph,
    init,
    localize,
    rules,
    verify,
)
from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting import check_report_path
from gradcheck_suite.reporting.paths import display_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_DESCRIPTION = """\
Find the autograd mistakes that raise nothing in PyTorch code: gradients that
are wrong, lost, added up twice or kept for ever while all seems to go well.
"""
_EPILOG = """\
examples:
  gradcheck-suite demo
  gradcheck-suite audit train.py --epochs 1
  gradcheck-suite verify ops.py:MyFunction --inputs ops.py:make_inputs

read on: gradcheck-suite COMMAND --help; gradcheck-suite explain CODE, for what
a finding means; gradcheck-lint --help, for mistakes that the source shows.

exit status: 0 nothing found, 1 findings at or above --fail-on, 2 usage,
configuration or internal failure. audit keeps the script's own status.
"""


_COMMANDS = {
    "audit": audit,
    "verify": verify,
    "localize": localize,
    "graph": graph,
    "demo": demo,
    "explain": explain,
    "rules": rules,
    "doctor": doctor,
    "init": init,
}
_FOR_THE_LINTER = ("lint", "check", "fix", "format", "server")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gradcheck-suite`` with these arguments and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser, commands = _build_parser()
    if not words:
        parser.print_help(sys.stderr)
        return USAGE
    _refuse_unknown_command(words[0], parser)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse_unknown_option(unknown, commands[arguments.command])
    # The user's code may put another in its place.
    arguments.stdout = sys.stdout
    return exit_status(
        "gradcheck-suite",
        lambda: _run(arguments),
        explain=lambda error: _not_our_fault(error, arguments.command),
    )


def _run(arguments: argparse.Namespace) -> int:
    path = getattr(arguments, "output_file", None)
    if path is not None and "{rank}" not in str(path.parent):
        check_report_path(path)
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
        for frame, line in traceback.walk_tb(error.__traceback__)
        if owner_of_file(frame.f_code.co_filename) is Owner.USER
    ]
    return places[-1] if places else ""


def _refuse_unknown_command(word: str, parser: argparse.ArgumentParser) -> None:
    if word.startswith("-") or word in _COMMANDS:
        return
    if word in _FOR_THE_LINTER:
        advice = "source is linted by a command of its own: gradcheck-lint PATH..."
    else:
        near = difflib.get_close_matches(word, _COMMANDS, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(_COMMANDS)}"
    parser.error(f"there is no command {word!r}; {advice}")


def _refuse_unknown_option(unknown: Sequence[str], command: argparse.ArgumentParser) -> None:
    """Say so with the usage of the command, and what may have been meant."""
    known = [name for action in command._actions for name in action.option_strings]  # noqa: SLF001 - argparse names them nowhere else
    near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
    advice = f"; did you mean {near[0]}?" if near else ""
    command.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")


def _build_parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and those of the commands by name."""
    parser = argparse.ArgumentParser(
        prog="gradcheck-suite",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"gradcheck-suite {__version__}"
    )
    add_completion_option(parser)
    subparsers = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    for command in _COMMANDS.values():
        command.add_parser(subparsers)
    return parser, subparsers.choices


def _not_our_fault(error: Exception, command: str) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return (
            f"{command} needs PyTorch, which is not installed here; "
            "install it with: pip install 'gradcheck-suite[torch]'"
        )
    theirs = _user_traceback(error)
    if theirs is not None:
        sys.stderr.write(theirs)
        return f"{command} stopped at the {type(error).__name__} above, raised by your code"
    return None


def _user_traceback(error: BaseException) -> str | None:
    """Format ``error`` from the first frame that is the user's, or return None if none is.

    Without one, it begins with the first frame of a package. Frames that lead there, and frames of
    gradcheck-suite anywhere, are left out: they say nothing about the user's mistake. A
    SyntaxError has no frame of its own and is shown by its file and line.
    """
    if isinstance(error, SyntaxError):
        return "".join(traceback.format_exception_only(type(error), error))
    frames = _from_first(Owner.USER, error.__traceback__)
    frames = frames or _from_first(Owner.PACKAGE, error.__traceback__)
    if frames is None or _raised_by_us(frames):
        return None
    return "".join(traceback.format_exception(type(error), error, without_ours(frames)))


def _from_first(owner: Owner, frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and owner_of_file(frames.tb_frame.f_code.co_filename) is not owner:
        frames = frames.tb_next
    return frames


def _raised_by_us(frames: TracebackType) -> bool:
    last = frames
    while last.tb_next is not None:
        last = last.tb_next
    return is_ours(last)
