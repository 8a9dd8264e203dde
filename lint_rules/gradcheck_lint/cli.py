"""The ``gradcheck-lint`` command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradcheck_lint.options import NEVER, build_parser
from gradcheck_lint.output import say, write, write_diff
from gradcheck_suite._runtime.exit_codes import (
    CLEAN,
    FINDINGS,
    USAGE,
    exit_status,
    internal_error,
    writing_output,
)
from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradcheck_lint.config import Settings, SettingsFinder
    from gradcheck_lint.runner import Options, Run, SettingsFor
    from gradcheck_suite.findings import Finding

_STDIN = "-"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gradcheck-lint`` with these arguments and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_status("gradcheck-lint", lambda: _run(words))


def _run(words: list[str]) -> int:
    if words and words[0] in _WORDS and not os.path.lexists(words[0]):
        return _WORDS[words[0]](words[1:])
    if words:
        _refuse_misspelt_use(words[0])
    arguments = build_parser().parse_args(words)
    if not arguments.paths:
        # Whoever says which file standard input stands for means standard input, as in ruff.
        arguments.paths = [_STDIN if arguments.stdin_filename is not None else "."]
    if arguments.explain is not None:
        return _explain([arguments.explain, f"--color={arguments.color}"])
    _refuse_contradictions(arguments)
    if arguments.output_file is not None:
        from gradcheck_suite.reporting import check_report_path  # noqa: PLC0415 - on demand

        check_report_path(arguments.output_file)
    finder = _finder(arguments)
    settings_for = _adjusted(finder, arguments)
    # The options are checked even if there is no file to apply them to.
    settings = settings_for(".")
    paths: list[str] = arguments.paths
    run = (
        _on_stdin(arguments, settings_for)
        if _STDIN in paths
        else _on_files(paths, arguments, settings_for, settings)
    )
    if arguments.write_baseline or arguments.add_noqa:
        return _adopt(run, arguments, settings)
    run = _without_known(run, arguments, settings)
    status = _status(run, arguments.fail_on or settings.fail_on, arguments)
    with writing_output():
        _tell(run, arguments, on_stdin=_STDIN in paths)
    return status


def _refuse_misspelt_use(word: str) -> None:
    """Tell a path that does not exist from another use of the command that was meant."""
    if not word.isidentifier() or os.path.lexists(word):
        return
    import difflib  # noqa: PLC0415 - rare path

    close = difflib.get_close_matches(word.lower(), _WORDS, n=1)
    meant = f"did you mean `gradcheck-lint {close[0]}`? " if close else ""
    raise UsageError(
        f"there is no file or directory {word!r}; {meant}gradcheck-lint lints the paths that it is "
        f"given; its other uses are {', '.join(_WORDS)}"
    )


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    if _STDIN in arguments.paths:
        if len(arguments.paths) > 1:
            raise UsageError("standard input (-) can't be linted together with files")
        if arguments.add_noqa or arguments.write_baseline:
            raise UsageError("--add-noqa and --write-baseline need files, not standard input")
    if arguments.unsafe_fixes and not (arguments.fix or arguments.diff):
        raise UsageError("--unsafe-fixes says which fixes to make; give --fix or --diff with it")
    if arguments.add_noqa and (arguments.fix or arguments.diff or arguments.write_baseline):
        raise UsageError("--add-noqa can't be combined with --fix, --diff or --write-baseline")
    if arguments.write_baseline and (arguments.fix or arguments.diff):
        raise UsageError("--write-baseline can't be combined with --fix or --diff")
    if arguments.isolated and arguments.config:
        raise UsageError("--isolated reads no configuration, so --config can't be given with it")


def _status(run: Run, fail_on: str, arguments: argparse.Namespace) -> int:
    if run.failures:
        return USAGE
    if arguments.exit_zero or fail_on == NEVER:
        return CLEAN
    if arguments.diff:
        return FINDINGS if any(before != after for _, before, after in run.changes) else CLEAN
    return FINDINGS if run.report.at_least(Severity(fail_on)) else CLEAN


def _tell(run: Run, arguments: argparse.Namespace, *, on_stdin: bool) -> None:
    if arguments.diff:
        write_diff(run.changes)
    elif arguments.fix and on_stdin:
        # The fixed source is what standard output is for; the report goes beside it.
        sys.stdout.flush()
        for _, _, after in run.changes:
            sys.stdout.buffer.write(after)
        sys.stdout.buffer.flush()
        write(run.report, arguments, sys.stderr)
    else:
        write(run.report, arguments)
    if run.fixed and not arguments.quiet:
        would = "would be fixed" if arguments.diff else "fixed"
        say(f"{_plural(len(run.fixed), 'mistake')} {would} in {_plural(len(run.changes), 'file')}")
    if (arguments.fix or arguments.diff) and not arguments.quiet:
        _tell_of_what_stays(run.report.findings, unsafe_are_made=arguments.unsafe_fixes)
    _tell_failures(run)


def _tell_of_what_stays(findings: Iterable[Finding], *, unsafe_are_made: bool) -> None:
    """Say of what is left whether a fix would mend it."""
    left = [each for each in findings if not each.code.startswith(_ABOUT_US)]
    unsafe = [each for each in left if "fix" in each.evidence and not each.fixable]
    if unsafe and not unsafe_are_made:
        say(f"{_plural(len(unsafe), 'mistake')} can be fixed with --unsafe-fixes: read its diff")
    by_hand = [each for each in left if "fix" not in each.evidence]
    if by_hand:
        codes = " ".join(sorted({each.code for each in by_hand}))
        say(
            f"no fix for {_plural(len(by_hand), 'mistake')}, which a person has to mend: "
            f"gradcheck-suite explain {codes}"
        )


_ABOUT_US = "GCS0"
"""How the codes begin of what is no mistake in the code: a file that can't be read, say."""


def _tell_failures(run: Run) -> None:
    """Say why the status is 2: the report may be in a file, or in a format that nobody reads."""
    for failure in run.failures:
        path = failure.location.path if failure.location is not None else "-"
        reason = failure.message.removeprefix("internal error: ")
        say(f"error: {internal_error(f'{path}: {reason}')}")


def _plural(count: int, noun: str) -> str:
    from gradcheck_suite.reporting.text import plural  # noqa: PLC0415 - on demand

    return plural(count, noun)


def _on_files(
    paths: list[str],
    arguments: argparse.Namespace,
    settings_for: SettingsFor,
    settings: Settings,
) -> Run:
    from gradcheck_lint.runner import fix_paths, lint_paths  # noqa: PLC0415 - not for --help

    options = _options(arguments, settings)
    if arguments.fix or arguments.diff:
        run = fix_paths(
            paths,
            settings_for=settings_for,
            options=options,
            unsafe=arguments.unsafe_fixes,
            write=not arguments.diff,
        )
    else:
        run = lint_paths(paths, settings_for=settings_for, options=options)
    if run.report.summary.get("files") == 0 and not arguments.quiet:
        say(f"no Python files to lint in {', '.join(paths)}")
    return run


def _options(arguments: argparse.Namespace, settings: Settings) -> Options:
    from gradcheck_lint.cache import open_cache  # noqa: PLC0415 - not for --help
    from gradcheck_lint.runner import Options  # noqa: PLC0415 - as above

    return Options(
        force_exclude=arguments.force_exclude,
        respect_gitignore=settings.respect_gitignore and not arguments.no_gitignore,
        jobs=arguments.jobs,
        cache=open_cache(arguments.cache_dir, enabled=not arguments.no_cache),
    )


def _on_stdin(arguments: argparse.Namespace, settings_for: SettingsFor) -> Run:
    from gradcheck_lint.runner import (  # noqa: PLC0415 - as above
        TOOL,
        Run,
        fix_text,
        is_excluded,
        lint_text,
    )
    from gradcheck_suite.findings import Report  # noqa: PLC0415 - as above

    name: str = arguments.stdin_filename or "<stdin>"
    settings = settings_for(arguments.stdin_filename or ".")
    if sys.stdin is None:
        raise UsageError("standard input (-) is closed; expected Python source there")
    source = sys.stdin.buffer.read()
    if arguments.force_exclude and is_excluded(name, settings):
        return Run(Report(tool=TOOL, summary={"files": 0}), changes=((name, source, source),))
    if arguments.fix or arguments.diff:
        return fix_text(source, name, settings=settings, unsafe=arguments.unsafe_fixes)
    return Run(lint_text(source, name, settings=settings))


def _finder(arguments: argparse.Namespace) -> SettingsFinder:
    from gradcheck_lint.config import Settings, SettingsFinder, read_settings  # noqa: PLC0415

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

    return settings_for


def _baseline_path(arguments: argparse.Namespace, settings: Settings) -> Path | None:
    if arguments.baseline is not None:
        path: Path = arguments.baseline
        return path
    return None if settings.baseline is None else settings.root / settings.baseline


def _adopt(run: Run, arguments: argparse.Namespace, settings: Settings) -> int:
    """Accept the findings as they are: in a baseline, or by comments."""
    from gradcheck_lint import baseline, noqa  # noqa: PLC0415 - rare

    if arguments.write_baseline:
        path = _baseline_path(arguments, settings)
        if path is None:
            raise UsageError("--write-baseline needs to know where: give --baseline FILE")
        known = [finding for finding in run.report.findings if finding not in run.failures]
        count = baseline.write(path, known)
        say(f"{_plural(count, 'finding')} listed in {path}")
    else:
        added, left = noqa.add_noqa(run.report.findings)
        say(f"{_plural(added, 'finding')} silenced")
        for message in left:
            say(message)
    _tell_failures(run)
    return USAGE if run.failures else CLEAN


def _without_known(run: Run, arguments: argparse.Namespace, settings: Settings) -> Run:
    path = _baseline_path(arguments, settings)
    if path is None:
        return run
    from dataclasses import replace  # noqa: PLC0415 - as below

    from gradcheck_lint import baseline  # noqa: PLC0415 - rare

    new = baseline.read(path).without_known(run.report.findings)
    summary = {**run.report.summary, "in_baseline": len(run.report.findings) - len(new)}
    return replace(run, report=replace(run.report, findings=new, summary=summary))


def _explain(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gradcheck-lint explain",
        description="Say what rules are about, why it matters, and what to write instead.",
    )
    parser.add_argument("names", nargs="+", metavar="RULE", help="codes or names of rules")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    arguments = parser.parse_args(words)
    from gradcheck_suite.reporting.explain import print_explanation  # noqa: PLC0415 - on demand

    named = [name for name in arguments.names if name.lower() not in _OWN_FINDINGS]
    with writing_output():
        for name in arguments.names:
            if name.lower() in _OWN_FINDINGS:
                sys.stdout.write(_OWN_FINDINGS[name.lower()])
        if named:
            print_explanation(named, sys.stdout, color=arguments.color)
        sys.stdout.flush()
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
    with writing_output():
        print_rules(entries, arguments.output_format, sys.stdout)
        sys.stdout.flush()
    return CLEAN


def _server(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gradcheck-lint server",
        description="Serve editors the Language Server Protocol on standard input and output.",
    )
    # Some clients give this word to every server.
    parser.add_argument("--stdio", action="store_true", help=argparse.SUPPRESS)
    parser.parse_args(words)
    from gradcheck_lint.server import serve  # noqa: PLC0415 - needs pygls

    serve()
    return CLEAN


_UNREADABLE = """\
GCS000 unreadable-file: a file was not linted (or not fixed), and why: it can't be read or parsed,
is too large or too deeply nested. Correct it, leave it out with `exclude`, or pass such files over
with `ignore = ["unreadable-file"]`.
"""
_FAILED = """\
GCS002 internal-error: the linter itself failed on a file, which is a bug in gradcheck-suite. What
was left out is told, all else in the file is linted, and the exit status is 2. Please report it
with what GRADCHECK_SUITE_TRACEBACK=1 makes it print; until then leave out the rule or the file.
"""
_UNUSED = """\
GCS001 unused-suppression: a `# noqa: GCS...` or `# gradcheck: ignore[...]` comment names a rule
that finds nothing there, or that does not exist. `--fix` takes the name away.
"""
_OWN_FINDINGS: Final = {
    "gcs000": _UNREADABLE,
    "unreadable-file": _UNREADABLE,
    "gcs001": _UNUSED,
    "unused-suppression": _UNUSED,
    "gcs002": _FAILED,
    "internal-error": _FAILED,
}
_WORDS = {"explain": _explain, "rules": _rules, "server": _server}
