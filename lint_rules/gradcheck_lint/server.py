"""Serve editors: diagnostics while typing, quick fixes, and what a rule is about on hover.

A notebook is looked at as a whole, as its cells know one another's names; each cell is a document
of its own to the editor, and is told what is wrong in it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradcheck_lint.config import Settings, SettingsFinder
from gradcheck_lint.engine import inspect_source
from gradcheck_lint.failures import Failures
from gradcheck_lint.fixes import edited, fix_source
from gradcheck_lint.inspection import Inspected, Inspection
from gradcheck_lint.noqa import NOT_SILENCED, with_noqa
from gradcheck_lint.notebooks import CellModule
from gradcheck_lint.parsing import decode, encode
from gradcheck_lint.project.importers import forget_index
from gradcheck_lint.project.layout import root_of
from gradcheck_lint.runner import is_excluded
from gradcheck_suite import catalogue
from gradcheck_suite._addresses import page_of
from gradcheck_suite._version import __version__
from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity

try:
    from lsprotocol import types as lsp
    from pygls.lsp.server import LanguageServer
    from pygls.uris import to_fs_path
    from pygls.workspace import ServerTextPosition, ServerTextRange, TextDocument
except ImportError as error:
    raise UsageError(
        "the language server needs pygls, which is not installed: "
        "pip install 'gradcheck-suite[lsp]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.catalogue import Entry
    from gradcheck_suite.findings import Finding, Location

_SEVERITIES: Final = {
    Severity.ERROR: lsp.DiagnosticSeverity.Error,
    Severity.WARNING: lsp.DiagnosticSeverity.Warning,
    Severity.NOTE: lsp.DiagnosticSeverity.Information,
}
_FIX_ALL: Final = "source.fixAll.gradcheck-lint"
_CODE = re.compile(r"GCS\d{3}")
_NAME: Final = "gradcheck-lint"


_NOTEBOOKS: Final = lsp.NotebookDocumentSyncOptions(
    notebook_selector=[
        lsp.NotebookDocumentFilterWithNotebook(
            notebook=lsp.NotebookDocumentFilterNotebookType(notebook_type="jupyter-notebook"),
            cells=[lsp.NotebookCellLanguage(language="python")],
        )
    ]
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found in one state of a document, or of the cells of a notebook.

    ``uri`` is that of the document or notebook, ``texts`` are what ``documents`` held. ``cells``
    joins them, where they are cells.
    """

    uri: str
    documents: tuple[TextDocument, ...]
    texts: tuple[str, ...]
    cells: CellModule | None
    source: bytes
    inspection: Inspection
    codes: frozenset[str]

    def place(self, location: Location | None) -> tuple[TextDocument, Location | None]:
        """Return in which document a place is, and where."""
        if self.cells is None or location is None:
            return self.documents[0], location
        index, place = self.cells.place(location)
        return self.documents[index], place

    def diagnostics(self) -> Iterator[tuple[TextDocument, lsp.Diagnostic]]:
        """Yield what is wrong, each with the document that it is in."""
        for finding in self.inspection.findings:
            yield _diagnostic(finding, self)
        for index, finding in self.cells.refused(self.uri) if self.cells is not None else ():
            document = self.documents[index]
            yield document, _told(finding, _range(finding.location, document))


class Server(LanguageServer):
    """A language server that remembers what it found in each open document."""

    def __init__(self) -> None:
        super().__init__(_NAME, __version__, notebook_document_sync=_NOTEBOOKS)
        self._seen: dict[str, _Seen] = {}
        self._cells: dict[str, frozenset[str]] = {}

    def look_at(self, uri: str) -> _Seen:
        """Return what is found in the present text of a document, or of a cell's notebook."""
        notebook = self.workspace.get_notebook_document(cell_uri=uri)
        if notebook is not None:
            return self.look_at_notebook(notebook)
        return self._look(uri, (self.workspace.get_text_document(uri),), are_cells=False)

    def look_at_notebook(self, notebook: lsp.NotebookDocument) -> _Seen:
        """Return what is found in the present cells of a notebook."""
        documents = tuple(
            self.workspace.get_text_document(cell.document)
            for cell in notebook.cells
            if cell.kind == lsp.NotebookCellKind.Code
        )
        return self._look(notebook.uri, documents, are_cells=True)

    def _look(self, uri: str, documents: tuple[TextDocument, ...], *, are_cells: bool) -> _Seen:
        texts = tuple(document.source for document in documents)
        seen = self._seen.get(uri)
        if seen is None or seen.texts != texts or seen.documents != documents:
            path = to_fs_path(uri) or uri
            codes = self._codes(path)
            cells = CellModule(texts) if are_cells else None
            source = encode(texts[0]) if cells is None else cells.code.encode("utf-8", "replace")
            inspection = Inspection()
            if codes:
                forget_index()
                inspection = inspect_source(source, path, codes=codes, root=root_of(path))
            seen = _Seen(uri, documents, texts, cells if codes else None, source, inspection, codes)
            self._seen[uri] = seen
        return seen

    def tell(self, uri: str, failures: Failures) -> None:
        """Write what failed into the editor's log."""
        for finding in failures.findings(to_fs_path(uri) or uri):
            text = f"{_NAME}: {uri}: {finding.message}; {finding.hint}"
            self.window_log_message(lsp.LogMessageParams(lsp.MessageType.Error, text))

    def forget(self, uri: str) -> None:
        """Drop what is known of a document."""
        self._seen.pop(uri, None)

    def _codes(self, path: str) -> frozenset[str]:
        """Return the rules for a file; none if it is excluded or the settings can't be used."""
        try:
            settings: Settings = SettingsFinder().settings_for(path)
        except UsageError as error:
            self.window_show_message(
                lsp.ShowMessageParams(lsp.MessageType.Error, f"{_NAME}: {error}")
            )
            return frozenset()
        return frozenset() if is_excluded(path, settings) else settings.codes_for(path)

    def publish(self, uri: str) -> None:
        """Tell the editor what is wrong in a document."""
        self._publish(self.look_at(uri))

    def publish_notebook(self, uri: str) -> None:
        """Tell the editor what is wrong in each cell of a notebook."""
        notebook = self.workspace.get_notebook_document(notebook_uri=uri)
        seen = None if notebook is None else self.look_at_notebook(notebook)
        present = frozenset(document.uri for document in seen.documents) if seen else frozenset()
        for gone in self._cells.pop(uri, frozenset()) - present:
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(gone, []))
        if seen is not None:
            self._cells[uri] = present
            self._publish(seen)

    def _publish(self, seen: _Seen) -> None:
        by_uri: dict[str, list[lsp.Diagnostic]] = {each.uri: [] for each in seen.documents}
        for document, diagnostic in seen.diagnostics():
            by_uri[document.uri].append(diagnostic)
        for document in seen.documents:
            self.text_document_publish_diagnostics(
                lsp.PublishDiagnosticsParams(document.uri, by_uri[document.uri], document.version)
            )


def create_server() -> Server:
    """Return a server that is ready to be started."""
    server = Server()

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def did_open(ls: Server, params: lsp.DidOpenTextDocumentParams) -> None:
        ls.publish(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(ls: Server, params: lsp.DidChangeTextDocumentParams) -> None:
        ls.publish(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def did_save(ls: Server, params: lsp.DidSaveTextDocumentParams) -> None:
        ls.forget(params.text_document.uri)  # the settings may have been what was saved
        ls.publish(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(ls: Server, params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        ls.forget(uri)
        ls.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_OPEN)
    def did_open_notebook(ls: Server, params: lsp.DidOpenNotebookDocumentParams) -> None:
        ls.publish_notebook(params.notebook_document.uri)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def did_change_notebook(ls: Server, params: lsp.DidChangeNotebookDocumentParams) -> None:
        ls.publish_notebook(params.notebook_document.uri)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_SAVE)
    def did_save_notebook(ls: Server, params: lsp.DidSaveNotebookDocumentParams) -> None:
        ls.forget(params.notebook_document.uri)  # as above
        ls.publish_notebook(params.notebook_document.uri)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def did_close_notebook(ls: Server, params: lsp.DidCloseNotebookDocumentParams) -> None:
        ls.forget(params.notebook_document.uri)
        ls.publish_notebook(params.notebook_document.uri)

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix, _FIX_ALL]),
    )
    def code_action(ls: Server, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        return list(_actions(ls, params))

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(ls: Server, params: lsp.HoverParams) -> lsp.Hover | None:
        return _hover(ls, params)

    return server


def serve() -> None:
    """Serve one editor on standard input and output, until it says goodbye."""
    create_server().start_io()


def _actions(server: Server, params: lsp.CodeActionParams) -> Iterator[lsp.CodeAction]:
    uri = params.text_document.uri
    seen = server.look_at(uri)
    only = params.context.only
    if only is None or any(_is_below(lsp.CodeActionKind.QuickFix.value, kind) for kind in only):
        failures = Failures()
        for item in seen.inspection.items:
            document, diagnostic = _diagnostic(item.finding, seen)
            if document.uri == uri and _overlap(diagnostic.range, params.range):
                with failures.costing(f"the fix of {item.finding.rule}"):
                    yield from _fix_alone(item, diagnostic, seen)
                with failures.costing(f"silencing {item.finding.rule}"):
                    yield from _silencing(item, diagnostic, seen)
        server.tell(seen.uri, failures)
    if only is None or any(_is_below(_FIX_ALL, kind) for kind in only):
        path = to_fs_path(seen.uri) or seen.uri
        if any(item.safe for item in seen.inspection.items):
            new = decode(fix_source(seen.source, path, codes=seen.codes).source)
            yield lsp.CodeAction(
                title="Make all safe fixes of gradcheck-lint",
                kind=_FIX_ALL,
                edit=_edit(seen, new),
            )


def _fix_alone(
    item: Inspected, diagnostic: lsp.Diagnostic, seen: _Seen
) -> Iterator[lsp.CodeAction]:
    new = edited(seen.inspection, item)
    if new is not None and item.fix is not None:
        yield lsp.CodeAction(
            title=item.fix.message + ("" if item.safe else " (may change what the program does)"),
            kind=lsp.CodeActionKind.QuickFix,
            diagnostics=[diagnostic],
            is_preferred=item.safe,
            edit=_edit(seen, new),
        )


def _silencing(
    item: Inspected, diagnostic: lsp.Diagnostic, seen: _Seen
) -> Iterator[lsp.CodeAction]:
    if item.finding.code not in NOT_SILENCED:
        yield lsp.CodeAction(
            title=f"Silence {item.finding.code} on this line",
            kind=lsp.CodeActionKind.QuickFix,
            diagnostics=[diagnostic],
            edit=_edit(seen, decode(with_noqa(seen.source, [item.finding]))),
        )


def _is_below(kind: str, asked: str) -> bool:
    return kind == asked or kind.startswith(f"{asked}.")


def _overlap(one: lsp.Range, other: lsp.Range) -> bool:
    starts, ends = (_pair(one.start), _pair(other.start)), (_pair(one.end), _pair(other.end))
    # An editor asks for the whole line, or for a cursor at the end of what is marked.
    return starts[0] <= ends[1] and starts[1] <= ends[0]


def _pair(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character


def _edit(seen: _Seen, new: str) -> lsp.WorkspaceEdit:
    """Return the change to ``new``, of the document or of the cells that it differs in."""
    changes = {0: new} if seen.cells is None else seen.cells.changed(new)
    return lsp.WorkspaceEdit(
        changes={
            seen.documents[index].uri: list(_edits(seen.documents[index], text))
            for index, text in changes.items()
        }
    )


def _edits(document: TextDocument, new: str) -> Iterator[lsp.TextEdit]:
    """Yield the changes from a document's text to ``new``, of as few lines as it takes."""
    before = document.source.splitlines(keepends=True)
    after = new.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, end, begin, stop in matcher.get_opcodes():
        if tag != "equal":
            lines = lsp.Range(lsp.Position(start, 0), lsp.Position(end, 0))
            yield lsp.TextEdit(lines, "".join(after[begin:stop]))


def _hover(server: Server, params: lsp.HoverParams) -> lsp.Hover | None:
    uri = params.text_document.uri
    here = lsp.Range(params.position, params.position)
    for document, diagnostic in server.look_at(uri).diagnostics():
        entry = catalogue.find(str(diagnostic.code))
        if entry is not None and document.uri == uri and _overlap(diagnostic.range, here):
            return lsp.Hover(_explanation(entry), diagnostic.range)
    lines = server.workspace.get_text_document(uri).lines
    line = lines[params.position.line] if params.position.line < len(lines) else ""
    for match in _CODE.finditer(line):
        entry = catalogue.find(match.group())
        if entry is not None and match.start() <= params.position.character <= match.end():
            return lsp.Hover(_explanation(entry))
    return None


def _explanation(entry: Entry) -> lsp.MarkupContent:
    parts = [f"**{entry.code} {entry.slug}**: {entry.title}", entry.what, entry.why]
    if entry.instead:
        parts.append(f"Use instead:\n\n```python\n{entry.instead.rstrip()}\n```")
    text = "\n\n".join(part for part in parts if part)
    return lsp.MarkupContent(lsp.MarkupKind.Markdown, text)


def _diagnostic(finding: Finding, seen: _Seen) -> tuple[TextDocument, lsp.Diagnostic]:
    """Return what editors show of a finding, and the document to show it in."""
    document, place = seen.place(finding.location)
    related = []
    for other in finding.related:
        there, other_place = seen.place(other.location)
        where = lsp.Location(there.uri, _range(other_place, there))
        related.append(lsp.DiagnosticRelatedInformation(where, other.message))
    return document, _told(finding, _range(place, document), related)


def _told(
    finding: Finding,
    place: lsp.Range,
    related: Sequence[lsp.DiagnosticRelatedInformation] = (),
) -> lsp.Diagnostic:
    message = finding.message if finding.hint is None else f"{finding.message}\n{finding.hint}"
    return lsp.Diagnostic(
        range=place,
        message=message,
        severity=_SEVERITIES[finding.severity],
        code=finding.code,
        code_description=_page(finding.code),
        source=_NAME,
        related_information=related,
        data={"rule": finding.rule, "fixable": finding.fixable},
    )


def _page(code: str) -> lsp.CodeDescription | None:
    return None if catalogue.find(code) is None else lsp.CodeDescription(page_of(code))


def _range(location: Location | None, document: TextDocument) -> lsp.Range:
    """Return a place as editors count: from 0, in the units that the client has chosen."""
    if location is None:
        return lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
    line = location.line - 1
    end_line = (location.end_line or location.line) - 1
    lines = document.lines
    width = len(lines[end_line].rstrip("\r\n")) if 0 <= end_line < len(lines) else 0
    start = ServerTextPosition(line, (location.column or 1) - 1)
    end_column = width if location.end_column is None else location.end_column - 1
    end = ServerTextPosition(end_line, end_column)
    return document.range_to_client_units(ServerTextRange(start, end))
