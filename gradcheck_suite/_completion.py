"""Print the script that lets a shell complete the words of a command."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from gradcheck_suite._runtime.exit_codes import USAGE, writing_output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["add_completion_option"]

_SHELLS = ("bash", "zsh", "tcsh")
# What an argument stands for, by the name under which its help shows it.
_FILES = ("FILE", "OUT", "PATH", "SCRIPT")
_FOLDERS = ("DIR",)
_RULES = ("RULE", "CODE")


def add_completion_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--print-completion``, which needs shtab when it is given."""
    parser.add_argument(
        "--print-completion",
        choices=_SHELLS,
        action=_PrintCompletion,
        help="print what lets this shell complete options and names, to be kept where it looks "
        "for such scripts",
    )


class _PrintCompletion(argparse.Action):
    """Print the script and end, as ``--help`` does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - the signature of actions
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002 - as above
    ) -> None:
        try:
            import shtab  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            parser.exit(
                USAGE,
                f"{parser.prog}: error: --print-completion needs shtab, which is not installed "
                "here; install it with: pip install 'gradcheck-suite[completion]'\n",
            )
        for action in _actions(parser):
            shown = str(action.metavar or "")
            if shown.startswith(_FILES):
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads it
            elif shown.startswith(_FOLDERS):
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # as above
            elif shown.startswith(_RULES) and not action.choices:
                action.choices = _names_of_rules()
        with writing_output():
            sys.stdout.write(shtab.complete(parser, shell=str(values)) + "\n")
            sys.stdout.flush()
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield what a parser and those of its commands know: argparse has no public way to it."""
    for action in parser._actions:  # noqa: SLF001 - see above
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for command in action.choices.values():
                yield from _actions(command)


def _names_of_rules() -> list[str]:
    from gradcheck_suite import catalogue  # noqa: PLC0415 - on demand

    return [name for entry in catalogue.ENTRIES for name in (entry.code, entry.slug)]
