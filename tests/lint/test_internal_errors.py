"""An error in the linter itself costs what it is in, is told as ours, and loses no finding."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from gradcheck_lint.engine import inspect_source, lint_source
from gradcheck_lint.fixes import fix_source
from tests.lint import fake_rules, planted_errors

_TWO_RULES = """\
import torch

w = torch.ones(3, requires_grad=True)
w += 1
x = 1  # noqa: GCS101

def train(model, loader, optimizer):
    losses = []
    for x in loader:
        loss = model(x).mean()
        losses.append(loss)
        loss.backward()
        optimizer.step()
"""
_FOUND = {"GCS101", "GCS201", "GCS301", "GCS001"}
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def planted(tmp_path):
    """Run a tool on a file, with an error planted in the linter."""
    (tmp_path / "a.py").write_text(_TWO_RULES)
    (tmp_path / "b.py").write_text("import torch\nw = torch.ones(2, requires_grad=True)\nw += 1\n")

    def run(place, tool, *words, **environment):
        return subprocess.run(
            [sys.executable, "-c", _program(place, tool), *words],
            cwd=tmp_path,
            env=_environment(tmp_path) | environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=600,
        )

    return run


def _program(place, tool):
    return (
        "import sys\nfrom tests.lint import planted_errors\n"
        f"planted_errors.plant({place!r})\n"
        f"from {tool} import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )


def _environment(tmp_path):
    return {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "GRADCHECK_LINT_CACHE_DIR": str(tmp_path / "cache"),
    }


def _codes(done):
    return {(finding["path"], finding["code"]) for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("place", "lost"),
    [
        ("rule", {"GCS301"}),
        ("function model", {"GCS101", "GCS201", "GCS301", "GCS001"}),
        ("model of the file", {"GCS101", "GCS201", "GCS301", "GCS001"}),
        ("search for unused comments", {"GCS001"}),
        ("parser", _FOUND),
    ],
)
def test_error_costs_what_it_is_in_and_is_told(planted, place, lost):
    done = planted(place, "gradcheck_lint.cli", "a.py", "--output-format=json")
    found = {code for _, code in _codes(done)}
    assert found == (_FOUND - lost) | {"GCS002"}
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "internal error: a.py: ZeroDivisionError: planted by a test; left out: " in done.stderr
    assert "please report it" in done.stderr


def test_message_names_the_error_and_what_it_cost(planted):
    done = planted("rule", "gradcheck_lint.cli", "a.py", "--output-format=concise")
    (line,) = [line for line in done.stdout.splitlines() if "GCS002" in line]
    assert line == (
        "a.py:1: GCS002 [error] internal error: ZeroDivisionError: planted by a test; "
        "left out: the rule missing-zero-grad"
    )


@pytest.mark.slow
def test_other_files_are_linted_and_what_failed_is_not_remembered(planted, command, tmp_path):
    for _ in range(2):
        done = planted("rule", "gradcheck_lint.cli", ".", "--output-format=json", "-j2")
        assert ("b.py", "GCS101") in _codes(done)
    done = subprocess.run(
        [sys.executable, "-m", "gradcheck_lint", "--output-format=json"],
        cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert {code for path, code in _codes(done) if path == "a.py"} == _FOUND
    assert done.returncode == 1


@pytest.mark.slow
def test_no_list_of_known_findings_and_no_comment_takes_it_in(planted, tmp_path):
    words = ("a.py", "--baseline=known.json")
    done = planted("rule", "gradcheck_lint.cli", *words, "--write-baseline")
    assert done.returncode == 2
    assert "GCS002" not in (tmp_path / "known.json").read_text()
    done = planted("rule", "gradcheck_lint.cli", *words)
    assert done.returncode == 2
    assert "GCS002" in done.stdout
    planted("rule", "gradcheck_lint.cli", "a.py", "--add-noqa")
    assert "GCS002" not in (tmp_path / "a.py").read_text()


def test_traceback_can_be_had_and_the_report_stays(planted):
    done = planted(
        "rule", "gradcheck_lint.cli", "a.py", "--output-format=json", GRADCHECK_SUITE_TRACEBACK="1"
    )
    assert 'planted_errors.py", line' in done.stderr
    assert ("a.py", "GCS201") in _codes(done)


def test_comments_of_a_rule_that_failed_are_not_told_to_be_unused(planted, tmp_path):
    (tmp_path / "a.py").write_text(f"{_TWO_RULES}y = 1  # noqa: GCS301\n")
    assert planted("rule", "gradcheck_lint.cli", "a.py").stdout.count("GCS001") == 1


def test_findings_are_reported_where_comments_can_not_be_read(planted, tmp_path):
    (tmp_path / "a.py").write_text(_TWO_RULES.replace("w += 1", "w += 1  # noqa"))
    done = planted("heeding of comments", "gradcheck_lint.cli", "a.py", "--output-format=json")
    assert {code for _, code in _codes(done)} >= {"GCS301", "GCS201", "GCS002"}


def test_failing_fix_is_not_made_and_told(planted, tmp_path):
    done = planted(
        "writing of fixes", "gradcheck_lint.cli", "a.py", "--fix", "--output-format=json"
    )
    assert done.returncode == 2
    assert {code for _, code in _codes(done)} == _FOUND | {"GCS002"}
    assert (tmp_path / "a.py").read_text() == _TWO_RULES


def test_fixes_that_can_not_be_chosen_among_are_made_one_at_a_time(planted, tmp_path):
    done = planted(
        "choice among fixes", "gradcheck_lint.cli", "a.py", "--fix", "--output-format=json"
    )
    assert done.returncode == 2
    assert {code for _, code in _codes(done)} == {"GCS101", "GCS301", "GCS002"}
    assert "noqa" not in (tmp_path / "a.py").read_text()


def test_failing_fix_does_not_stop_the_others(monkeypatch):
    fake_rules.install(monkeypatch)
    source = "import torch\nx = bursts()\ny = sum_it()\n"
    result = fix_source(source.encode(), "a.py")
    assert result.source.decode() == source.replace("sum_it()", "a + b")
    assert [(finding.code, finding.location.line) for finding in result.left] == [
        ("GCS002", 1),
        ("GCS101", 2),
    ]
    assert "left out: the fixes at once, the fix of leaf-inplace" in result.left[0].message


def test_deep_nesting_that_a_rule_gives_up_on_is_the_fault_of_the_file(monkeypatch):
    def sink(*_):
        raise RecursionError

    monkeypatch.setattr(planted_errors.missing_zero_grad.MissingZeroGrad, "check", sink)
    first, *others = lint_source(_TWO_RULES.encode(), "a.py")
    assert first.code == "GCS000"
    assert first.message == (
        "this file was not linted whole: its expressions or blocks are nested too deeply to read; "
        "left out: the rule missing-zero-grad"
    )
    assert {finding.code for finding in others} == _FOUND - {"GCS301"}


def test_rule_that_reports_a_node_of_elsewhere_loses_that_finding_alone(monkeypatch):
    def check(*_):
        yield fake_rules.Violation(fake_rules.cst.Name("elsewhere"), "a mistake")

    monkeypatch.setattr(planted_errors.missing_zero_grad.MissingZeroGrad, "check", check)
    found = [finding.code for finding in lint_source(_TWO_RULES.encode(), "a.py")]
    assert set(found) == (_FOUND - {"GCS301"}) | {"GCS002"}
    assert found.count("GCS002") == 1


def test_many_rules_that_fail_alike_are_one_finding(monkeypatch):
    planted_errors.plant_for(monkeypatch, "function model")
    failed = [
        item.finding
        for item in inspect_source(_TWO_RULES.encode(), "a.py").items
        if item.finding.code == "GCS002"
    ]
    assert len(failed) == 1
    assert " and " in failed[0].message
    assert failed[0].message.endswith(" more")


def test_flake8_tells_it_and_the_rest(planted):
    done = planted("rule", "flake8.main.cli", "--isolated", "--select=GCS", "--jobs=1", "a.py")
    assert "a.py:1:1: GCS002 internal error: ZeroDivisionError: planted by a test" in done.stdout
    assert "GCS201" in done.stdout
    assert "GCS101" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio's pipes")
@pytest.mark.slow
def test_editor_sees_it_and_the_rest(tmp_path):
    uri = (tmp_path / "a.py").as_uri()

    async def run():
        client = LanguageClient("tests", "1")
        heard = asyncio.Queue()
        for message in (lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS, lsp.WINDOW_LOG_MESSAGE):
            client.feature(message)(lambda params: heard.put_nowait(params))  # noqa: PLW0108 - pygls marks what it is given
        program = _program("rule", "gradcheck_lint.cli").replace(
            "import main\n", "import main\nplanted_errors.plant('writing of fixes')\n"
        )
        await client.start_io(
            sys.executable, "-c", program, "server", cwd=str(tmp_path), env=_environment(tmp_path)
        )
        await client.initialize_async(lsp.InitializeParams(lsp.ClientCapabilities()))
        document = lsp.TextDocumentItem(uri, "python", 1, _TWO_RULES)
        client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
        published = await heard.get()
        actions = await client.text_document_code_action_async(
            lsp.CodeActionParams(
                lsp.TextDocumentIdentifier(uri),
                lsp.Range(lsp.Position(4, 0), lsp.Position(4, 20)),
                lsp.CodeActionContext([], only=[lsp.CodeActionKind.QuickFix]),
            )
        )
        logged = await heard.get()
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()
        return published, actions, logged

    published, actions, logged = asyncio.run(asyncio.wait_for(run(), 120))
    codes = {diagnostic.code for diagnostic in published.diagnostics}
    assert codes == (_FOUND - {"GCS301"}) | {"GCS002"}
    assert [action.title for action in actions] == ["Silence GCS001 on this line"]
    assert "ZeroDivisionError: planted by a test" in logged.message
