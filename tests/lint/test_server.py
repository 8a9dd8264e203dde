from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient
from pygls.workspace import Workspace

from gradcheck_lint.server import create_server
from gradcheck_suite._addresses import page_of

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
                capabilities=lsp.ClientCapabilities(
                    notebook_document=lsp.NotebookDocumentClientCapabilities(
                        lsp.NotebookDocumentSyncClientCapabilities()
                    )
                ),
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
@pytest.mark.slow
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
    assert leaf.code_description.href == page_of("GCS101")
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
@pytest.mark.slow
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
    seen = server.look_at(uri)
    (finding,) = seen.inspection.findings
    ((_, diagnostic),) = seen.diagnostics()
    # UTF-16, the default, takes two units for the smiley.
    assert diagnostic.range.start.character == finding.location.column


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


def _cell(notebook, name, text, language="python"):
    """Return a cell, and the document that holds its text."""
    uri = f"{notebook.replace('file:', 'vscode-notebook-cell:')}#{name}"
    return (
        lsp.NotebookCell(lsp.NotebookCellKind.Code, uri),
        lsp.TextDocumentItem(uri, language, 1, text),
    )


_DATA = "%matplotlib inline\nimport torch\nw = torch.ones(3, requires_grad=True)"
_USE = "  # the leaf of the other cell\n  w += 1\n  q = 1  # noqa: GCS301"


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio's pipes")
@pytest.mark.slow
def test_cells_of_a_notebook_know_one_another(tmp_path):
    uri = (tmp_path / "a.ipynb").as_uri()
    cells = [_cell(uri, "data", _DATA), _cell(uri, "use", _USE), _cell(uri, "bad", "x = 1\nx = =")]
    data, use, bad = (cell.document for cell, _ in cells)

    async def conversation(client, published, capabilities):
        seen = {"sync": capabilities.capabilities.notebook_document_sync}

        async def told(count):
            publications = [await published.get() for _ in range(count)]
            return {each.uri: list(each.diagnostics) for each in publications}

        client.notebook_document_did_open(
            lsp.DidOpenNotebookDocumentParams(
                lsp.NotebookDocument(uri, "jupyter-notebook", 1, [cell for cell, _ in cells]),
                [document for _, document in cells],
            )
        )
        seen["opened"] = await told(3)
        place = lsp.TextDocumentIdentifier(use)
        seen["hover"] = await client.text_document_hover_async(
            lsp.HoverParams(place, lsp.Position(1, 3))
        )
        seen["leaf"] = await client.text_document_code_action_async(_actions_at(use, 1))
        seen["comment"] = await client.text_document_code_action_async(_actions_at(use, 2))
        seen["elsewhere"] = await client.text_document_code_action_async(_actions_at(data, 1))

        async def change(version, changes, count):
            client.notebook_document_did_change(
                lsp.DidChangeNotebookDocumentParams(
                    lsp.VersionedNotebookDocumentIdentifier(version, uri),
                    lsp.NotebookDocumentChangeEvent(cells=changes),
                )
            )
            return await told(count)

        edit = lsp.NotebookDocumentCellContentChanges(
            lsp.VersionedTextDocumentIdentifier(2, data),
            [lsp.TextDocumentContentChangeWholeDocument("import torch\nw = torch.ones(3)")],
        )
        seen["edited"] = await change(2, lsp.NotebookDocumentCellChanges(text_content=[edit]), 3)
        removal = lsp.NotebookDocumentCellChangeStructure(
            lsp.NotebookCellArrayChange(2, 1, []), did_close=[lsp.TextDocumentIdentifier(bad)]
        )
        seen["removed"] = await change(3, lsp.NotebookDocumentCellChanges(structure=removal), 3)
        client.notebook_document_did_save(
            lsp.DidSaveNotebookDocumentParams(lsp.NotebookDocumentIdentifier(uri))
        )
        seen["saved"] = await told(2)
        client.notebook_document_did_close(
            lsp.DidCloseNotebookDocumentParams(
                lsp.NotebookDocumentIdentifier(uri),
                [lsp.TextDocumentIdentifier(data), lsp.TextDocumentIdentifier(use)],
            )
        )
        seen["closed"] = await told(2)
        return seen

    seen = talk(tmp_path, conversation)
    (selector,) = seen["sync"].notebook_selector
    assert selector.notebook.notebook_type == "jupyter-notebook"
    assert [cell.language for cell in selector.cells] == ["python"]

    assert seen["opened"][data] == []
    leaf, unused = seen["opened"][use]
    assert (leaf.code, unused.code) == ("GCS101", "GCS001")
    assert (leaf.range.start, leaf.range.end) == (lsp.Position(1, 2), lsp.Position(1, 8))
    (where,) = [each.location for each in leaf.related_information]
    assert (where.uri, where.range.start.line) == (data, 2)
    (refused,) = seen["opened"][bad]
    assert (refused.code, refused.range.start.line) == ("GCS000", 1)

    assert "**GCS101 leaf-inplace**" in seen["hover"].contents.value
    (silence,) = [action for action in seen["leaf"] if action.title.startswith("Silence")]
    assert list(silence.edit.changes) == [use]
    assert _applied(_USE, silence).splitlines()[1] == "  w += 1  # noqa: GCS101"
    fix = next(action for action in seen["comment"] if action.is_preferred)
    assert _applied(_USE, fix) == _USE.replace("  # noqa: GCS301", "")
    assert [action.title for action in seen["elsewhere"]] == [
        "Make all safe fixes of gradcheck-lint"
    ]

    assert [each.code for each in seen["edited"][use]] == ["GCS001"]
    assert seen["removed"][bad] == []
    assert [each.code for each in seen["saved"][use]] == ["GCS001"]
    assert seen["closed"] == {data: [], use: []}
