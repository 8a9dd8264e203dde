"""``gradcheck-suite graph``: draw what backward will do from what a function returns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gradcheck_suite.commands._shared import Subparsers, add_report_options, emit
from gradcheck_suite.commands._targets import load_target
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from torch.nn import Module as TorchModule

    from gradcheck_suite.graph import AutogradGraph
    from gradcheck_suite.reporting import ColorChoice

_DESCRIPTION = """\
Call a function, and draw the autograd graph of the tensors that it returns: a
loss, or a list, dict or object that holds tensors. To name the leaves, and to
be told of parameters that backward can't reach, return (tensors, model).
"""
_FORCED: Mapping[ColorChoice, bool | None] = {"always": True, "never": False, "auto": None}
_PAIR = 2


def add_parser(subparsers: Subparsers) -> None:
    """Add ``graph`` to the commands."""
    parser = subparsers.add_parser(
        "graph",
        help="draw what backward will do",
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "target",
        metavar="FILE.py:FUNCTION",
        help="a function without arguments that returns tensors, or (tensors, model)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        help="save the graph instead of printing it; the suffix says how: .txt, .json",
    )
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw or save the graph, write the report on it, and return the exit status.

    The picture goes to standard output only beside a report that is text too.
    """
    function = load_target(arguments.target)
    from gradcheck_suite.graph import trace_graph  # noqa: PLC0415 - loads torch
    from gradcheck_suite.graph.save import check_destination  # noqa: PLC0415 - loads torch

    output: Path | None = arguments.output
    if output is not None:
        check_destination(output)
    tensors, model = _call(function, target=arguments.target)
    graph = trace_graph(tensors, model=model)
    if output is not None:
        graph.save(output)
        print(f"graph saved to {output}", file=sys.stderr)  # noqa: T201 - a command's words
    elif arguments.output_format == "full":
        print_graph(graph, stream=sys.stdout, color=arguments.color)
    return emit(graph.report, arguments)


def _call(function: object, *, target: str) -> tuple[object, TorchModule | None]:
    from torch.nn import Module  # noqa: PLC0415 - loads torch

    if not callable(function) or isinstance(function, Module):
        raise UsageError(
            f"{target} names an object of type {type(function).__name__}, expected a function "
            "without arguments that returns tensors; write one, such as: "
            "def make_loss(): return model(x).sum(), model"
        )
    result = function()
    if isinstance(result, tuple) and len(result) == _PAIR and isinstance(result[1], Module):
        return result[0], result[1]
    return result, None


def print_graph(graph: AutogradGraph, *, stream: TextIO, color: ColorChoice) -> None:
    """Draw ``graph`` for ``stream``: as wide, and in the signs and colours, as that can show."""
    from rich.console import Console  # noqa: PLC0415 - loads rich

    from gradcheck_suite.graph.render_text import graph_renderables  # noqa: PLC0415 - loads rich
    from gradcheck_suite.reporting.text import encodable  # noqa: PLC0415 - on demand

    console = Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=_FORCED[color],
        no_color=True if color == "never" else None,
    )
    encoding = getattr(stream, "encoding", None)
    with console.capture() as drawn:
        for renderable in graph_renderables(
            graph, width=console.width, encoding=encoding, with_findings=False
        ):
            console.print(renderable)
        console.print()
    stream.write(encodable(drawn.get(), encoding))
