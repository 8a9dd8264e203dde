"""``gradcheck-suite graph``: draw what backward will do from what a function returns."""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
import webbrowser
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, TextIO

from gradcheck_suite._runtime.frames import Owner, owner_of_file
from gradcheck_suite.commands._shared import Subparsers, add_report_options, emit
from gradcheck_suite.commands._targets import (
    load_target,
    made_by,
    made_module,
    refuse_coroutine,
)
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.nn import Module as TorchModule

    from gradcheck_suite.graph import AutogradGraph
    from gradcheck_suite.reporting import ColorChoice

_DESCRIPTION = """\
Call a function, and draw the autograd graph of the tensors that it returns: a
loss, or a list, dict or object that holds tensors. To name the leaves, and to
be told of parameters that backward can't reach, return (tensors, model). The
call is recorded: module names and saved bytes are known without more ado.
"""
_EPILOG = """\
exit status: 0 drawn or saved, and nothing wrong, 1 findings at or above
--fail-on, such as parameters that backward can't reach, 2 if there is nothing
to draw or it can't be saved, 130 after Ctrl-C.
"""
_WITH = ("source", "saved", "gradients")
_FORCED: Mapping[ColorChoice, bool | None] = {"always": True, "never": False, "auto": None}
_PAIR = 2
_FOR_BROWSERS = (".html", ".svg", ".png")


def add_parser(subparsers: Subparsers) -> None:
    """Add ``graph`` to the commands."""
    parser = subparsers.add_parser(
        "graph",
        help="draw what backward will do",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target",
        metavar="FILE.py:FUNCTION",
        help="a function that returns tensors, or (tensors, model); or a module, with --inputs",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE.py:FUNCTION",
        help="a function without arguments that makes the target's arguments: a tensor, or a "
        "tuple of arguments, or a dict of named ones",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=_destination,
        help="save the graph instead of printing it; the suffix says how: .html, .svg, .png, "
        ".txt, .json, .dot; an existing folder gets an event file for TensorBoard",
    )
    parser.add_argument(
        "--open", action="store_true", help="open what was saved in the browser (.html, .svg, .png)"
    )
    parser.add_argument(
        "--depth",
        type=_depth,
        metavar="N",
        help="levels of modules to open in pictures, or 'all' (default: what stays readable)",
    )
    parser.add_argument(
        "--with",
        dest="extras",
        type=_extras,
        default=frozenset(),
        metavar="WHAT",
        help="more to record, separated by commas: source (the line of each op; forward takes "
        "some ten times as long), saved (what in-place writes into views saved), gradients "
        "(runs backward, and shows the size of every gradient)",
    )
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw or save the graph, write the report on it, and return the exit status.

    The picture goes to standard output only beside a report that is text too.
    """
    output: Path | None = arguments.output
    if arguments.open and (output is None or output.suffix.lower() not in _FOR_BROWSERS):
        raise UsageError(f"--open needs -o with a name that ends in {', '.join(_FOR_BROWSERS)}")
    function = load_target(arguments.target)
    from gradcheck_suite.graph.save import check_destination  # noqa: PLC0415 - loads torch

    if output is not None:
        check_destination(output)
    graph = _recorded(function, arguments)
    if output is not None:
        _save(graph, output, depth=arguments.depth)
        if arguments.open:
            _open_in_browser(output)
    draws = output is None and arguments.output_format == "full"
    return emit(
        graph.report,
        arguments,
        before=partial(print_graph, graph, color=arguments.color) if draws else None,
    )


def _save(graph: AutogradGraph, path: Path, *, depth: int | None) -> None:
    """Save the graph, and tell of it and of what it takes the place of, a line for each."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        graph.save(path, depth=depth)
    lines = [*(f"warning: {each.message}" for each in told), f"graph saved to {path}"]
    print(*lines, sep="\n", file=sys.stderr)  # noqa: T201 - a command's words


def _open_in_browser(path: Path) -> None:
    if not webbrowser.open(path.resolve().as_uri()):
        print(f"there is no browser here to open {path}", file=sys.stderr)  # noqa: T201 - as above


def _depth(text: str) -> int:
    if text == "all":
        return -1
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, or 'all', got {text!r}")
    return int(text)


def _destination(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a file name, such as graph.html, got ''")
    return Path(text)


def _extras(text: str) -> frozenset[str]:
    extras = frozenset(part.strip() for part in text.split(",") if part.strip())
    unknown = sorted(extras.difference(_WITH))
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is not one of {', '.join(_WITH)} (separate several by commas)"
        )
    return extras


def _recorded(function: object, arguments: argparse.Namespace) -> AutogradGraph:
    from torch import Tensor  # noqa: PLC0415 - loads torch

    from gradcheck_suite.graph import record  # noqa: PLC0415 - loads torch
    from gradcheck_suite.graph.tracing import trace_called  # noqa: PLC0415 - loads torch

    extras: frozenset[str] = arguments.extras
    call = _call_of(function, arguments)
    with record(
        source="source" in extras,
        # A backward frees what was saved: who asks for its gradients sees the bytes as well.
        saved=bool({"saved", "gradients"} & extras),
        backward="gradients" in extras,
    ) as recording:
        tensors, model = call()
        if "gradients" in extras:
            _run_backward(tensors, Tensor, target=arguments.target)
    function_name = str(arguments.target).rpartition(":")[-1]
    return trace_called(tensors, model, recording=recording, called=f"what {function_name} returns")


def _run_backward(tensors: object, tensor_type: type, *, target: str) -> None:
    """Run backward from a scalar; a tensor of another shape stands for its sum."""
    if not isinstance(tensors, tensor_type):
        raise UsageError(
            f"--with gradients runs backward, and {target} returned a {type(tensors).__name__}, "
            "expected one tensor: return the loss, or (loss, model)"
        )
    loss: Any = tensors
    if not loss.requires_grad:
        return
    if loss.is_complex():
        raise UsageError(
            f"--with gradients runs backward, and {target} returned a complex tensor, expected a "
            "real one: return a real loss, such as y.abs().sum()"
        )
    try:
        loss.sum().backward()
    except RuntimeError as error:
        if _is_of_the_user(error):
            raise
        reason = str(error).partition(". ")[0].removesuffix(".")
        raise UsageError(
            f"--with gradients runs backward from what {target} returned, and torch refused: "
            f"{reason}; draw the graph without gradients, or mend the function first"
        ) from error


def _is_of_the_user(error: BaseException) -> bool:
    """Return whether code of the user's, a hook or a custom Function, ran when it was raised."""
    return any(
        owner_of_file(frame.f_code.co_filename) is Owner.USER
        for frame, _ in walk_tb(error.__traceback__)
    )


def _check_arguments(
    function: Callable[..., object],
    target: str,
    positional: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    """Refuse arguments that the function can't be called with."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        given = "--inputs makes" if positional or named else "without --inputs there are"
        what = [type(value).__name__ for value in positional] + [f"{name}=" for name in named]
        raise UsageError(
            f"{target} can't be called: {error}. It expects {signature}, and {given} "
            f"{', '.join(what) or 'no arguments'}; name a function that makes them with --inputs"
        ) from error


def _call_of(
    function: object, arguments: argparse.Namespace
) -> Callable[[], tuple[object, TorchModule | None]]:
    from torch.nn import Module  # noqa: PLC0415 - loads torch

    target = arguments.target
    if isinstance(function, type) and issubclass(function, Module):
        function = made_module(function, target, (), None)
    positional: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    if arguments.inputs is not None:
        positional, named = _inputs(arguments.inputs)
    elif isinstance(function, Module) or not callable(function):
        raise UsageError(
            f"{target} names an object of type {type(function).__name__}, expected a function "
            "without arguments that returns tensors; write one, such as: "
            "def make_loss(): return model(x).sum(), model; or give a module its --inputs"
        )
    if not callable(function):
        raise UsageError(
            f"{target} names an object of type {type(function).__name__}, expected a function or "
            "a module to call with --inputs"
        )

    called = function.forward if isinstance(function, Module) else function
    refuse_coroutine(called, target)
    _check_arguments(called, target, positional, named)

    def call() -> tuple[object, TorchModule | None]:
        result = function(*positional, **named)
        if isinstance(function, Module):
            return result, function
        if isinstance(result, tuple) and len(result) == _PAIR and isinstance(result[1], Module):
            return result[0], result[1]
        return result, None

    return call


def _inputs(target: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    made = made_by(target)
    if isinstance(made, dict):
        return (), made
    return (made if isinstance(made, tuple) else (made,)), {}


def print_graph(graph: AutogradGraph, stream: TextIO, *, color: ColorChoice) -> None:
    """Draw ``graph`` for ``stream``: as wide, and in the signs and colours, as that can show."""
    from gradcheck_suite.graph.render.text import graph_renderables  # noqa: PLC0415 - loads rich
    from gradcheck_suite.reporting.console import open_console  # noqa: PLC0415 - as above
    from gradcheck_suite.reporting.text import encodable  # noqa: PLC0415 - on demand

    console = open_console(
        stream,
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
