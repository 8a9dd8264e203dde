"""Write a report as text, a page, or what machines read; nothing here decides anything.

Each format has a module of its own, which is imported when it is first asked for: importing this
package costs next to nothing, and only the "full" format needs rich.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias, get_args

from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting.text import ColorChoice, encodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType

    from gradcheck_suite.findings import JSON, Report

__all__ = [
    "OUTPUT_FORMATS",
    "ColorChoice",
    "OutputFormat",
    "check_report_path",
    "format_of_file",
    "ledger_to_fragment",
    "report_headline",
    "report_mimebundle",
    "report_renderables",
    "report_to_text",
    "write_report",
    "write_report_file",
]

OutputFormat: TypeAlias = Literal[
    "full", "concise", "json", "sarif", "github", "gitlab", "junit", "html", "markdown"
]

# Each has a module of its name here, whose ``render(report)`` returns the text; "full" is for
# terminals and takes more.
OUTPUT_FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)

_FORMAT_OF_SUFFIX: Mapping[str, OutputFormat] = {
    ".txt": "full",
    ".sarif.json": "sarif",
    ".sarif": "sarif",
    ".json": "json",
    ".xml": "junit",
    ".html": "html",
    ".md": "markdown",
}


def format_of_file(path: str) -> OutputFormat:
    """Return the format that the suffix of a report's file stands for.

    >>> format_of_file("runs/audit.html"), format_of_file("audit.sarif.json")
    ('html', 'sarif')

    Raises:
        ValueError: it stands for none.
    """
    for suffix, output_format in _FORMAT_OF_SUFFIX.items():
        if path.lower().endswith(suffix):
            return output_format
    raise ValueError(
        f"expected a file name that ends in {', '.join(_FORMAT_OF_SUFFIX)}, which says the format"
    )


def write_report(
    report: Report,
    *,
    output_format: OutputFormat,
    stream: TextIO,
    color: ColorChoice = "auto",
) -> None:
    """Write ``report`` to ``stream`` and flush it.

    ``color`` concerns the "full" format alone: "auto" colours a terminal that can show it and
    heeds ``NO_COLOR``. Characters that the stream's encoding lacks are written as backslash
    escapes.

    Raises:
        BrokenPipeError: the reader of ``stream`` has gone, as after ``| head``. The caller
            decides what that means for its exit status.
        OSError: ``stream`` cannot be written.
        ValueError: ``output_format`` is none of ``OUTPUT_FORMATS``.
    """
    if output_format == "full":
        from gradcheck_suite.reporting import console  # noqa: PLC0415 - loads rich

        text = console.render_for(report, stream=stream, color=color)
    elif output_format in OUTPUT_FORMATS:
        text = import_module(f"{__name__}.{output_format}").render(report)
    else:
        raise ValueError(
            f"output_format must be one of {', '.join(OUTPUT_FORMATS)}; got {output_format!r}"
        )
    stream.write(encodable(text, getattr(stream, "encoding", None)))
    stream.flush()


def report_headline(report: Report) -> str:
    """Return one line that counts the findings and tells the most severe of them."""
    from gradcheck_suite.reporting.summary import headline  # noqa: PLC0415 - on demand

    return headline(report)


def write_report_file(
    report: Report,
    path: str | os.PathLike[str],
    *,
    output_format: OutputFormat,
    color: ColorChoice = "auto",
) -> None:
    """Write ``report`` to the file ``path``, in UTF-8, in place of what is there.

    Raises:
        OSError: it cannot be written.
    """
    with Path(path).open("w", encoding="utf-8", newline="\n") as stream:
        write_report(
            report,
            output_format=output_format,
            stream=stream,
            color="never" if color == "auto" else color,
        )


def check_report_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path that no report can be written to, before there is one.

    Raises:
        UsageError: its folder isn't there or can't be written, or it is a folder itself.
    """
    path = Path(path)
    if path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = f"{path if path.exists() else path.parent} can't be written"
    else:
        return
    raise UsageError(
        f"cannot write the report to {path}: {reason}. Give --output-file a path in a folder that "
        "exists and can be written"
    )


def report_to_text(report: Report) -> str:
    """Return the full report as plain text of 80 columns, without colour or a final newline."""
    from gradcheck_suite.reporting import console  # noqa: PLC0415 - loads rich

    return console.render_plain(report)


def report_mimebundle(report: Report) -> dict[str, str]:
    """Return what a notebook shows for ``report``, by media type."""
    from gradcheck_suite.reporting import html  # noqa: PLC0415 - on demand

    return {"text/plain": report_to_text(report), "text/html": html.report_fragment(report)}


def ledger_to_fragment(ledger: Mapping[str, JSON]) -> str:
    """Return what a notebook shows for a ledger."""
    from gradcheck_suite.reporting import html  # noqa: PLC0415 - on demand

    return html.ledger_fragment(ledger)


def report_renderables(report: Report, *, width: int) -> Iterable[RenderableType]:
    """Return what rich prints for ``report`` on a console that is ``width`` cells wide."""
    from gradcheck_suite.reporting import console  # noqa: PLC0415 - loads rich

    return console.renderables(report, width=width)
