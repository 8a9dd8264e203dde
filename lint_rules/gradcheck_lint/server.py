"""Serve editors: diagnostics while typing, quick fixes, and what a rule is about on hover."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradcheck_lint.config import Settings, SettingsFinder
from gradcheck_lint.engine import inspect_source
from gradcheck_lint.fixes import edited, fix_source
from gradcheck_lint.inspection import Inspected, Inspection
from gradcheck_lint.noqa import with_noqa
from gradcheck_lint.parsing import decode, encode
from gradcheck_lint.runner import is_excluded
from gradcheck_lint.unreadable import UNREADABLE_CODE
from gradcheck_suite import catalogue
from gradcheck_suite._version import __version__
from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity

try:
    from lsprotocol import types as lsp
    from pygls.lsp.server import LanguageServer
    from pygls.uris import to_fs_path
    from pygls.workspace import ServerTextPosition, ServerTextRange
except ImportError as error:
    raise UsageError(
        "the language server needs pygls, which is not installed: "
        "pip install 'gradcheck-suite[lsp]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pygls.workspace import TextDocument

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


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found in one version of a document."""

    version: int | None
    source: bytes
    inspection: Inspection
    codes: frozenset[str]


class Server(LanguageServer):
    """A language server that remembers what it found in each open document."""

    def __init__(self) -> None:
        super().__init__(_NAME, __version__)
        self._seen: dict[str, _Seen] = {}

    def look_at(self, uri: str) -> _Seen:
        """Return what is found in the present text of a document."""
        document = self.workspace.get_text_document(uri)
        seen = self._seen.get(uri)
        source = encode(document.source)
        if seen is None or seen.version != document.version or seen.source != source:
            path = to_fs_path(uri) or uri
            codes = self._codes(path)
            inspection = inspect_source(source, path, codes=codes) if codes else Inspection()
            seen = self._seen[uri] = _Seen(document.version, source, inspection, codes)
        return seen

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
        document = self.workspace.get_text_document(uri)
        findings = self.look_at(uri).inspection.findings
        diagnostics = [_diagnostic(finding, document) for finding in findings]
        self.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri, diagnostics, document.version)
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
    document = server.workspace.get_text_document(uri)
    seen = server.look_at(uri)
    only = params.context.only
    if only is None or any(_is_below(lsp.CodeActionKind.QuickFix.value, kind) for kind in only):
        for item in seen.inspection.items:
            diagnostic = _diagnostic(item.finding, document)
            if _overlap(diagnostic.range, params.range):
                yield from _quick_fixes(item, diagnostic, seen, document)
    if only is None or any(_is_below(_FIX_ALL, kind) for kind in only):
        path = to_fs_path(uri) or uri
        if any(item.safe for item in seen.inspection.items):
            new = decode(fix_source(seen.source, path, codes=seen.codes).source)
            yield lsp.CodeAction(
                title="Make all safe fixes of gradcheck-lint",
                kind=_FIX_ALL,
                edit=_edit(document, new),
            )


def _quick_fixes(
    item: Inspected, diagnostic: lsp.Diagnostic, seen: _Seen, document: TextDocument
) -> Iterator[lsp.CodeAction]:
    new = edited(seen.inspection, item)
    if new is not None and item.fix is not None:
        yield lsp.CodeAction(
            title=item.fix.message + ("" if item.safe else " (may change what the program does)"),
            kind=lsp.CodeActionKind.QuickFix,
            diagnostics=[diagnostic],
            is_preferred=item.safe,
            edit=_edit(document, new),
        )
    if item.finding.code != UNREADABLE_CODE:
        yield lsp.CodeAction(
            title=f"Silence {item.finding.code} on this line",
            kind=lsp.CodeActionKind.QuickFix,
            diagnostics=[diagnostic],
            edit=_edit(document, decode(with_noqa(seen.source, [item.finding]))),
        )


def _is_below(kind: str, asked: str) -> bool:
    return kind == asked or kind.startswith(f"{asked}.")


def _overlap(one: lsp.Range, other: lsp.Range) -> bool:
    starts, ends = (_pair(one.start), _pair(other.start)), (_pair(one.end), _pair(other.end))
    # An editor asks for the whole line, or for a cursor at the end of what is marked.
    return starts[0] <= ends[1] and starts[1] <= ends[0]


def _pair(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character


def _edit(document: TextDocument, new: str) -> lsp.WorkspaceEdit:
    """Return the change from a document's text to ``new``, as few lines as it takes."""
    before = document.source.splitlines(keepends=True)
    after = new.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    edits = [
        lsp.TextEdit(
            lsp.Range(lsp.Position(start, 0), lsp.Position(end, 0)), "".join(after[begin:stop])
        )
        for tag, start, end, begin, stop in matcher.get_opcodes()
        if tag != "equal"
    ]
    return lsp.WorkspaceEdit(changes={document.uri: edits})


def _hover(server: Server, params: lsp.HoverParams) -> lsp.Hover | None:
    uri = params.text_document.uri
    document = server.workspace.get_text_document(uri)
    here = lsp.Range(params.position, params.position)
    for finding in server.look_at(uri).inspection.findings:
        diagnostic = _diagnostic(finding, document)
        entry = catalogue.find(finding.code)
        if entry is not None and _overlap(diagnostic.range, here):
            return lsp.Hover(_explanation(entry), diagnostic.range)
    lines = document.lines
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


def _diagnostic(finding: Finding, document: TextDocument) -> lsp.Diagnostic:
    message = finding.message if finding.hint is None else f"{finding.message}\n{finding.hint}"
    return lsp.Diagnostic(
        range=_range(finding.location, document),
        message=message,
        severity=_SEVERITIES[finding.severity],
        code=finding.code,
        source=_NAME,
        related_information=[
            lsp.DiagnosticRelatedInformation(
                lsp.Location(document.uri, _range(related.location, document)), related.message
            )
            for related in finding.related
        ],
        data={"rule": finding.rule, "fixable": finding.fixable},
    )


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
