"""``gradcheck-suite init``: set a repository up, after showing what that changes."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradcheck_suite._runtime.exit_codes import CLEAN, USAGE, reader_may_leave, writing_output
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.commands._shared import Subparsers
    from gradcheck_suite.setup.plan import Change, Plan
    from gradcheck_suite.setup.repository import Repository
    from gradcheck_suite.setup.training import Training, TrainingScript

_PARTS: Final = ("pre-commit", "settings", "pytest", "ci")
_DESCRIPTION = """\
Set up the repository that you are in: the hook of gradcheck-lint for
pre-commit, tables in pyproject.toml for the linter and for pytest, and a CI
job. What is to be written is shown first, as a diff. Files that exist gain
lines and keep every other byte.
"""
_EPILOG = """\
exit status: 0 if all is written, was there before, or was declined; 2 if a
part could not be set up. Needs no torch.
"""
_SHOWN = 3
"""How many training scripts are named: one is the user's, the others are for comparison."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command and its options."""
    parser = subparsers.add_parser(
        "init",
        help="set up pre-commit, pytest, settings and CI in a repository",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"set up these alone: {', '.join(_PARTS)} (default: all)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-y", "--yes", action="store_true", help="write without asking")
    how.add_argument("--dry-run", action="store_true", help="show the changes, write nothing")
    parser.add_argument(
        "--undo", action="store_true", help="take back what earlier runs wrote in this clone"
    )
    parser.add_argument(
        "--ci",
        choices=("github", "gitlab"),
        help="whose CI the job is for (default: by the remotes and files of the repository)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show what is to change, ask, write it, and return the exit status.

    Raises:
        UsageError: there is no repository, no such part, nobody to ask, or a file can't be
            written.
    """
    from gradcheck_suite.setup.repository import find_repository  # noqa: PLC0415 - on demand

    for part in arguments.parts:
        if part not in _PARTS:
            raise UsageError(f"init knows no part {part!r}; expected {', '.join(_PARTS)}")
    if arguments.undo and arguments.dry_run:
        raise UsageError("--undo takes back what was written, and --dry-run writes nothing")
    repository = find_repository(Path.cwd())
    with writing_output():
        return _undo(repository) if arguments.undo else _set_up(repository, arguments)


def _set_up(repository: Repository, arguments: argparse.Namespace) -> int:
    from gradcheck_suite.reporting.progress import progress  # noqa: PLC0415 - on demand
    from gradcheck_suite.setup.plan import plan_changes  # noqa: PLC0415 - on demand
    from gradcheck_suite.setup.record import write_changes  # noqa: PLC0415 - as above
    from gradcheck_suite.setup.training import find_training  # noqa: PLC0415 - as above

    with progress("Reading the repository"):
        training = find_training(repository.root)
    plan = plan_changes(
        repository,
        training,
        folder=Path.cwd(),
        parts=tuple(arguments.parts) or _PARTS,
        service=arguments.ci,
    )
    _say(*_found(training))
    _show(plan)
    status = USAGE if any(remark.is_problem for remark in plan.remarks) else CLEAN
    if not plan.changes:
        _say("nothing to write")
    elif arguments.dry_run:
        _say("nothing was written (--dry-run)")
    elif not arguments.yes and not _agreed(plan.changes):
        _say("nothing was written")
    else:
        for path in write_changes(repository, plan.changes):
            _say(f"wrote {path}")
        _say("", *_next_steps(repository, training, plan.changes))
    return status


def _found(training: Training) -> Iterator[str]:
    from gradcheck_suite.reporting.text import plural, visible  # noqa: PLC0415 - on demand

    for script in training.scripts[:_SHOWN]:
        loop = f"the loop is {script.framework}'s" if script.framework else "a loop of its own"
        yield f"found {visible(script.path)}:{script.line}, which trains ({loop})"
    more = len(training.scripts) - _SHOWN
    if more > 0:
        yield f"      and {plural(more, 'file')} more that {'trains' if more == 1 else 'train'}"
    if not training.scripts:
        yield "found no file that calls backward() and steps an optimizer"
    if training.unread:
        yield f"      {plural(training.unread, 'file')} more with such words were not read"
    if training.tests is not None:
        yield f"found tests in {training.tests}"


def _show(plan: Plan) -> None:
    from gradcheck_lint.fixes import unified_diff  # noqa: PLC0415 - needs libcst

    for change in plan.changes:
        diff = unified_diff(change.before or b"", change.after, change.path).rstrip("\n")
        if change.before is None:
            diff = diff.replace(f"--- a/{change.path}", "--- /dev/null", 1)
        _say("", diff)
    if plan.changes:
        _say("")
    for remark in plan.remarks:
        _say(f"{remark.part}: {'left out: ' if remark.is_problem else ''}{remark.text}")


def _agreed(changes: Sequence[Change]) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to ask on, so that nothing was written; give --yes to write it, "
            "or --dry-run to see it alone"
        )
    files = ", ".join(change.path for change in changes)
    sys.stdout.write(f"Write {files}? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _next_steps(
    repository: Repository, training: Training, changes: Sequence[Change]
) -> Iterator[str]:
    from gradcheck_suite.reporting.text import visible  # noqa: PLC0415 - on demand

    yield "next:"
    hook = any(change.path == ".pre-commit-config.yaml" for change in changes)
    if hook and not repository.hook_is_installed():
        yield "  pre-commit install                    git then runs the hook before each commit"
    yield "  gradcheck-lint                        what the source shows now"
    scripts = [script for script in training.scripts if script.is_script]
    if scripts:
        yield f"  {visible(_audit_of(scripts[0], repository)):<36}  what a run of it shows"
    yield "  gradcheck-suite init --undo           takes all of this back"


def _audit_of(script: TrainingScript, repository: Repository) -> str:
    from gradcheck_suite._runtime.packages import module_command, module_of_file  # noqa: PLC0415 - on demand

    place = None
    if script.levels:
        place = module_of_file(repository.root / script.path, levels=script.levels)
    if place is None:
        return f"gradcheck-suite audit {shlex.quote(script.path)}"
    folder, module = place
    return module_command(folder, module)


def _undo(repository: Repository) -> int:
    from gradcheck_suite.setup.record import take_back  # noqa: PLC0415 - on demand

    status = CLEAN
    for path, reason in take_back(repository):
        _say(f"took back {path}" if reason is None else f"{path} {reason}")
        status = status if reason is None else USAGE
    return status


def _say(*lines: str) -> None:
    from gradcheck_suite.reporting.text import encodable  # noqa: PLC0415 - on demand

    text = "".join(f"{line}\n" for line in lines)
    # What is to be written is written, also where nobody reads on about it.
    with reader_may_leave():
        sys.stdout.write(encodable(text, sys.stdout.encoding))
        sys.stdout.flush()
