"""The ``gradcheck-lint`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from gradcheck_suite._version import __version__
from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_lint.config import Settings, SettingsFinder
    from gradcheck_lint.runner import SettingsFor
    from gradcheck_suite.findings import Report

CLEAN: Final = 0
FINDINGS: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
"""The status of a command that Ctrl-C ended: 128 + SIGINT, as shells count."""

_FORMATS = ("full", "concise", "json", "sarif", "github")
_SEVERITIES = ("error", "warning", "note")
_STDIN = "-"
_EPILOG = """\
other uses:
  gradcheck-lint explain RULE...   what a rule is about, with an example
  gradcheck-lint rules             every rule of the linter

exit status: 0 nothing found, 1 findings at or above --fail-on, 2 usage,
configuration or internal failure. A file that can't be parsed is a finding.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gradcheck-lint`` with these arguments and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(words)
        sys.stdout.flush()
    except UsageError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINDINGS
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("GRADCHECK_SUITE_TRACEBACK"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}. This is a bug in gradcheck-suite; "
            "please report it with what GRADCHECK_SUITE_TRACEBACK=1 makes it print"
        )
    return status


def _run(words: list[str]) -> int:
    if words and words[0] in _WORDS and not os.path.lexists(words[0]):
        return _WORDS[words[0]](words[1:])
    arguments = _build_parser().parse_args(words)
    report = _lint(arguments)
    status = CLEAN
    if report.at_least(Severity(arguments.fail_on)) and not arguments.exit_zero:
        status = FINDINGS
    try:
        _write(report, arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _build_parser() -> argparse.ArgumentParser:
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
    _add_file_options(parser.add_argument_group("files"))
    _add_report_options(parser.add_argument_group("report"))
    parser.add_argument("--version", action="version", version=f"gradcheck-lint {__version__}")
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
        "--stdin-filename",
        metavar="FILE",
        help="the name that standard input goes by in the report and in the configuration",
    )


def _add_report_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-format",
        choices=_FORMATS,
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
        choices=_SEVERITIES,
        default="error",
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


def _lint(arguments: argparse.Namespace) -> Report:
    from gradcheck_lint.runner import lint_paths  # noqa: PLC0415 - not for --help

    finder = _finder(arguments)
    paths: list[str] = arguments.paths or ["."]
    if _STDIN in paths:
        if len(paths) > 1:
            raise UsageError("standard input (-) can't be linted together with files")
        return _lint_stdin(arguments, finder)
    report = lint_paths(
        paths, settings_for=_adjusted(finder, arguments), force_exclude=arguments.force_exclude
    )
    if report.summary.get("files") == 0 and not arguments.quiet:
        _say(f"no Python files to lint in {', '.join(paths)}")
    return report


def _lint_stdin(arguments: argparse.Namespace, finder: SettingsFinder) -> Report:
    from gradcheck_lint.runner import TOOL, is_excluded, lint_text  # noqa: PLC0415 - as above
    from gradcheck_suite.findings import Report  # noqa: PLC0415 - as above

    name: str = arguments.stdin_filename or "<stdin>"
    settings = _adjusted(finder, arguments)(arguments.stdin_filename or ".")
    if arguments.force_exclude and is_excluded(name, settings):
        return Report(tool=TOOL, summary={"files": 0})
    return lint_text(sys.stdin.buffer.read(), name, settings=settings)


def _finder(arguments: argparse.Namespace) -> SettingsFinder:
    from gradcheck_lint.config import Settings, SettingsFinder, read_settings  # noqa: PLC0415

    if arguments.isolated and arguments.config:
        raise UsageError("--isolated reads no configuration, so --config can't be given with it")
    if arguments.isolated:
        return SettingsFinder(Settings(Path.cwd()))
    if arguments.config:
        return SettingsFinder(read_settings(arguments.config, required=True))
    return SettingsFinder()


def _adjusted(finder: SettingsFinder, arguments: argparse.Namespace) -> SettingsFor:

    adjusted: dict[int, Settings] = {}

    def settings_for(path: str) -> Settings:
        found = finder.settings_for(path)
        known = adjusted.get(id(found))
        if known is None:
            known = adjusted[id(found)] = found.with_options(
                select=arguments.select,
                ignore=arguments.ignore or (),
                extend_select=arguments.extend_select or (),
            )
        return known

    # The options are checked even if there is no file to apply them to.
    settings_for(".")
    return settings_for


def _write(report: Report, arguments: argparse.Namespace) -> None:
    output_format = arguments.output_format
    if arguments.output_file is not None:
        _write_file(report, arguments.output_file, output_format or "concise", arguments.color)
        return
    if output_format is None:
        output_format = "full" if sys.stdout.isatty() else "concise"
    for_people = output_format in {"full", "concise"}
    if arguments.quiet and for_people and not report.findings:
        return
    _write_to(sys.stdout, report, output_format, arguments.color)
    if arguments.statistics and for_people:
        counts = Counter((finding.code, finding.rule) for finding in report.findings)
        for (code, rule), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            sys.stdout.write(f"{count:>6}  {code}  {rule}\n")


def _write_file(report: Report, path: Path, output_format: str, color: str) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            _write_to(stream, report, output_format, "never" if color == "auto" else color)
    except OSError as error:
        _write_to(sys.stdout, report, "concise", "never")
        raise UsageError(
            f"cannot write the report to {path}: {error.strerror or error}; it is printed above "
            "instead. Give --output-file a path in a folder that exists and can be written"
        ) from error


def _write_to(stream: TextIO, report: Report, output_format: str, color: str) -> None:
    from gradcheck_suite.reporting import write_report  # noqa: PLC0415 - not for --help

    write_report(report, output_format=output_format, stream=stream, color=color)  # type: ignore[arg-type]  # argparse checked both


def _explain(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gradcheck-lint explain",
        description="Say what rules are about, why it matters, and what to write instead.",
    )
    parser.add_argument("names", nargs="+", metavar="RULE", help="codes or names of rules")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    arguments = parser.parse_args(words)
    from gradcheck_suite.reporting.explain import print_explanation  # noqa: PLC0415 - on demand

    print_explanation(arguments.names, sys.stdout, color=arguments.color)
    return CLEAN


def _rules(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gradcheck-lint rules", description="List every rule of the linter."
    )
    parser.add_argument("--output-format", choices=("table", "json"), default="table")
    arguments = parser.parse_args(words)
    from gradcheck_lint.rules import RULES  # noqa: PLC0415 - on demand
    from gradcheck_suite import catalogue  # noqa: PLC0415 - on demand
    from gradcheck_suite.reporting.explain import print_rules  # noqa: PLC0415 - on demand

    found = [catalogue.find(rule.code) for rule in RULES]
    entries = [entry for entry in found if entry is not None]
    print_rules(entries, arguments.output_format, sys.stdout)
    return CLEAN


_WORDS = {"explain": _explain, "rules": _rules}


def _say(message: str) -> None:
    sys.stderr.write(f"gradcheck-lint: {message}\n")


def _fail(message: str) -> int:
    _say(f"error: {message}")
    return USAGE
