from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient
from pygls.workspace import Workspace

from gradcheck_lint.server import _diagnostic, create_server

_LEAF = "import torch\nw = torch.ones(3, requires_grad=True)\nw += 1\n"


def talk(tmp_path, conversation):
    """Hold a conversation with a server of its own, over standard input and output."""

    async def run():
        client = LanguageClient("tests", "1")
        published = asyncio.Queue()

        @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def diagnostics(params):
            published.put_nowait(params)

        @client.feature(lsp.WINDOW_SHOW_MESSAGE)
        def message(params):
            published.put_nowait(params)

        await client.start_io(sys.executable, "-m", "gradcheck_lint", "server", cwd=str(tmp_path))
        capabilities = await client.initialize_async(
            lsp.InitializeParams(
                capabilities=lsp.ClientCapabilities(),
                root_uri=tmp_path.as_uri(),
                process_id=os.getpid(),
            )
        )
        client.initialized(lsp.InitializedParams())
        result = await conversation(client, published, capabilities)
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()
        return result

    return asyncio.run(asyncio.wait_for(run(), 60))


def _open(client, uri, text):
    document = lsp.TextDocumentItem(uri, "python", 1, text)
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))


def _actions_at(uri, line, only=None):
    return lsp.CodeActionParams(
        lsp.TextDocumentIdentifier(uri),
        lsp.Range(lsp.Position(line, 0), lsp.Position(line, 80)),
        lsp.CodeActionContext([], only=only),
    )


def _applied(text, action):
    (edits,) = action.edit.changes.values()
    lines = text.splitlines(keepends=True)
    for edit in reversed(edits):
        lines[edit.range.start.line : edit.range.end.line] = [edit.new_text]
    return "".join(lines)


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio's pipes")
def test_an_editor_sees_finds_fixes_and_reads(tmp_path):
    uri = (tmp_path / "train.py").as_uri()
    text = f"{_LEAF}x = 1  # noqa: GCS301\n"

    async def conversation(client, published, capabilities):
        seen = {"capabilities": capabilities.capabilities}
        _open(client, uri, text)
        seen["opened"] = await published.get()
        place = lsp.TextDocumentIdentifier(uri)
        hover = lsp.HoverParams(place, lsp.Position(2, 1))
        seen["hover"] = await client.text_document_hover_async(hover)
        nowhere = lsp.HoverParams(place, lsp.Position(0, 0))
        seen["nothing"] = await client.text_document_hover_async(nowhere)
        in_comment = lsp.HoverParams(place, lsp.Position(3, 18))
        seen["comment"] = await client.text_document_hover_async(in_comment)
        seen["silence"] = await client.text_document_code_action_async(_actions_at(uri, 2))
        seen["fixes"] = await client.text_document_code_action_async(_actions_at(uri, 3))
        seen["all"] = await client.text_document_code_action_async(
            _actions_at(uri, 0, [lsp.CodeActionKind.SourceFixAll])
        )
        change = lsp.TextDocumentContentChangeWholeDocument("import torch\n")
        client.text_document_did_change(
            lsp.DidChangeTextDocumentParams(lsp.VersionedTextDocumentIdentifier(2, uri), [change])
        )
        seen["changed"] = await published.get()
        client.text_document_did_save(lsp.DidSaveTextDocumentParams(place))
        seen["saved"] = await published.get()
        client.text_document_did_close(lsp.DidCloseTextDocumentParams(place))
        seen["closed"] = await published.get()
        return seen

    seen = talk(tmp_path, conversation)
    assert seen["capabilities"].hover_provider
    leaf, unused = seen["opened"].diagnostics
    assert (leaf.code, leaf.severity, leaf.source) == ("GCS101", 1, "gradcheck-lint")
    assert (leaf.range.start.line, leaf.range.start.character, leaf.range.end.character) == (
        2,
        0,
        6,
    )
    assert (unused.code, unused.severity) == ("GCS001", 2)
    assert "**GCS101 leaf-inplace**" in seen["hover"].contents.value
    assert seen["nothing"] is None
    assert "GCS301 missing-zero-grad" in seen["comment"].contents.value
    assert [action.title for action in seen["silence"]][-2:] == [
        "Silence GCS101 on this line",
        "Make all safe fixes of gradcheck-lint",
    ]
    silenced = _applied(text, seen["silence"][-2])
    assert "w += 1  # noqa: GCS101\n" in silenced
    preferred = next(action for action in seen["fixes"] if action.is_preferred)
    assert _applied(text, preferred) == f"{_LEAF}x = 1\n"
    (fix_all,) = seen["all"]
    assert _applied(text, fix_all).endswith("x = 1\n")
    assert not seen["changed"].diagnostics
    assert not seen["saved"].diagnostics
    assert not seen["closed"].diagnostics


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio's pipes")
def test_settings_of_the_project_hold_in_the_editor(tmp_path):
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.gradcheck-suite.lint]\nexclude = ["old"]\nignore = ["GCS101"]\n')
    uri = (tmp_path / "a.py").as_uri()
    excluded = (tmp_path / "old" / "a.py").as_uri()

    async def conversation(client, published, _):
        seen = []
        for name in (uri, excluded):
            _open(client, name, _LEAF)
            seen.append(await published.get())
        settings.write_text("[tool.gradcheck-suite.lint]\nselcet = []\n")
        saved = lsp.DidSaveTextDocumentParams(lsp.TextDocumentIdentifier(uri))
        client.text_document_did_save(saved)
        seen.extend([await published.get(), await published.get()])
        return seen

    first, second, complaint, last = talk(tmp_path, conversation)
    assert not any(shown.diagnostics for shown in (first, second, last))
    assert "did you mean `select`?" in complaint.message


def _in_process(tmp_path, text, name="a.py"):
    server = create_server()
    uri = (tmp_path / name).as_uri()
    server.protocol._workspace = Workspace(tmp_path.as_uri())
    server.workspace.put_text_document(lsp.TextDocumentItem(uri, "python", 1, text))
    return server, uri


@pytest.mark.parametrize(
    "text",
    [
        f"x = '\U0001f600'\n{_LEAF.replace('w += 1', 'w += 1  # é')}",
        "# coding: latin-1\n" + _LEAF.replace("w += 1", "café = 1; w += 1"),
        "# coding: nope\n" + _LEAF,
        _LEAF.replace("\n", "\r\n"),
    ],
)
def test_texts_of_any_encoding_are_looked_at(tmp_path, text):
    server, uri = _in_process(tmp_path, text)
    findings = server.look_at(uri).inspection.findings
    assert {finding.code for finding in findings} <= {"GCS101", "GCS000"}
    assert len(findings) == 1
    assert server.look_at(uri) is server.look_at(uri)


def test_columns_are_in_the_units_of_the_client(tmp_path):
    server, uri = _in_process(tmp_path, _LEAF.replace("w += 1", "s = '\U0001f600'; w += 1"))
    (finding,) = server.look_at(uri).inspection.findings
    document = server.workspace.get_text_document(uri)
    # UTF-16, the default, takes two units for the smiley.
    assert _diagnostic(finding, document).range.start.character == finding.location.column


def test_without_pygls_the_command_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['pygls'] = None; sys.argv = ['gradcheck-lint', 'server']\n"
        "from gradcheck_lint.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "pip install 'gradcheck-suite[lsp]'" in done.stderr
