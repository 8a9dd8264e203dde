"""Say which options ``gradcheck-lint`` has."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gradcheck_suite._completion import add_completion_option
from gradcheck_suite._version import __version__

FORMATS: Final = (
    *("full", "concise", "json", "sarif", "github", "gitlab", "junit", "html", "markdown"),
)
NEVER = "never"
_FAIL_ON = ("error", "warning", "note", NEVER)
_EPILOG = """\
other uses:
  gradcheck-lint explain RULE...   what a rule is about, with an example
  gradcheck-lint rules             every rule of the linter
  gradcheck-lint server            a language server for editors, on standard input and output

exit status: 0 nothing found, 1 findings at or above --fail-on, 2 usage,
configuration or internal failure. A file that can't be parsed is a finding.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command itself, without its other uses."""
    parser = argparse.ArgumentParser(
        prog="gradcheck-lint",
        description="Find autograd mistakes in PyTorch source; torch is not needed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files and directories, or - for standard input (default: the current directory)",
    )
    _add_rule_options(parser.add_argument_group("rules"))
    _add_fix_options(parser.add_argument_group("changes"))
    _add_file_options(parser.add_argument_group("files"))
    _add_run_options(parser.add_argument_group("run"))
    _add_report_options(parser.add_argument_group("report"))
    version = f"gradcheck-lint {__version__}"
    parser.add_argument("-V", "--version", action="version", version=version)
    add_completion_option(parser)
    return parser


def _add_rule_options(group: argparse._ArgumentGroup) -> None:
    for option, text in (
        ("--select", "apply these rules alone"),
        ("--extend-select", "apply these rules as well"),
        ("--ignore", "don't apply these rules"),
    ):
        group.add_argument(
            option,
            type=_names,
            action="extend",
            metavar="RULE,...",
            help=f"{text}: codes, names, beginnings of codes, or ALL",
        )
    group.add_argument(
        "--explain", metavar="RULE", help="say what a rule is about, and do nothing else"
    )


def _add_fix_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--fix", action="store_true", help="make the safe fixes, report the rest")
    group.add_argument(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix or --diff: also those that may change what the program does",
    )
    group.add_argument(
        "--diff", action="store_true", help="show what --fix would change, and change nothing"
    )
    group.add_argument(
        "--add-noqa",
        action="store_true",
        help="silence every finding with a comment on its line",
    )
    group.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="report only findings that are not listed in FILE",
    )
    group.add_argument(
        "--write-baseline",
        action="store_true",
        help="list all present findings in the file that --baseline names",
    )


def _add_file_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="take the settings from this TOML file instead of the nearest pyproject.toml",
    )
    group.add_argument("--isolated", action="store_true", help="read no configuration at all")
    group.add_argument(
        "--force-exclude",
        action="store_true",
        help="leave excluded files out even if they are named (pre-commit names files)",
    )
    group.add_argument(
        "--no-gitignore", action="store_true", help="read files that git ignores, too"
    )
    group.add_argument(
        "--stdin-filename",
        metavar="FILE",
        help="the name that standard input goes by in the report and in the configuration",
    )


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-j",
        "--jobs",
        type=_positive,
        metavar="N",
        help="processes (default: one for each processor, fewer for little work)",
    )
    group.add_argument("--no-cache", action="store_true", help="remember nothing between runs")
    group.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="where to remember (default: the user's)"
    )


def _add_report_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-format",
        choices=FORMATS,
        help="how the report is written (default: full on a terminal, concise elsewhere)",
    )
    group.add_argument(
        "--output-file",
        type=Path,
        metavar="FILE",
        help="write the report to FILE instead of standard output",
    )
    group.add_argument(
        "--fail-on",
        choices=_FAIL_ON,
        help="exit with status 1 if a finding is at least this severe (default: error)",
    )
    group.add_argument(
        "--exit-zero", action="store_true", help="exit with status 0 whatever is found"
    )
    group.add_argument(
        "--statistics", action="store_true", help="count the findings of each rule at the end"
    )
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the report (default: auto, which colours a terminal)",
    )
    group.add_argument(
        "-q", "--quiet", action="store_true", help="write nothing if nothing is found"
    )


def _names(text: str) -> list[str]:
    return [name for name in text.replace(",", " ").split() if name]


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return number
