"""Write a graph for TensorBoard's graph dashboard, modules as scopes that open and close.

Works for any graph: nothing is traced or exported. Needs the tensorboard package for its file
formats, and no TensorFlow.
"""

from __future__ import annotations

import importlib
import re
import socket
import struct
import time
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from gradcheck_suite.errors import MissingDependencyError
from gradcheck_suite.graph.layout.labels import short_type
from gradcheck_suite.reporting.paths import display_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gradcheck_suite.graph.model import AutogradGraph, Node

__all__ = ["EVENTS", "check_tensorboard", "graph_def", "other_graph", "write_events"]

EVENTS = "tfevents"
"""What the name of an event file holds, by which TensorBoard finds it."""

# Tags of fields of the message Event, in the order in which they are written: event.proto of
# TensorFlow 2. The start of an event is long enough for the first two and the tag of the third.
_WALL_TIME, _STEP, _GRAPH_DEF = b"\x09", b"\x10", b"\x22"
_LONGEST_START = 32
_HEADER = struct.Struct("<QI")
_CHECKSUM = 4
_EVENTS_READ = 100_000
_PROTOS = "tensorboard.compat.proto"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_NAME_LENGTH = 200
_ITEMS = {"float64": 2, "float32": 1, "float16": 19, "bfloat16": 14, "int64": 9, "int32": 3}


def check_tensorboard() -> None:
    """Say what to install if the tensorboard package is missing.

    Raises:
        MissingDependencyError: it is.
    """
    _proto("graph_pb2")


def _proto(name: str) -> Any:
    try:
        return importlib.import_module(f"{_PROTOS}.{name}")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "writing a graph for TensorBoard needs the tensorboard package, which is not "
            "installed here; install it with: pip install 'gradcheck-suite[tensorboard]'. "
            "graph.save('graph.html') needs nothing"
        ) from error


def write_events(graph: AutogradGraph, destination: Path) -> Path:
    """Write ``graph`` as an event file, and return its path.

    Args:
        graph: what to write.
        destination: a folder, which gets a new file under the name that TensorBoard looks for, or
            the file itself.

    Raises:
        MissingDependencyError: the tensorboard package is not installed.
        OSError: the file cannot be written.
    """
    check_tensorboard()
    now = time.time()
    path = destination
    if destination.is_dir():
        host = _NOT_IN_A_NAME.sub("_", socket.gethostname())
        path = destination / f"events.out.tfevents.{int(now)}.{host}.{time.monotonic_ns()}"
    event = _proto("event_pb2").Event
    record_writer = importlib.import_module("tensorboard.summary.writer.record_writer").RecordWriter
    with path.open("wb") as stream:
        writer = record_writer(stream)
        writer.write(event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        writer.write(
            event(wall_time=now, graph_def=graph_def(graph).SerializeToString()).SerializeToString()
        )
        writer.flush()
    return path


def other_graph(destination: Path) -> Path | None:
    """Return the event file whose graph TensorBoard will no longer show.

    It shows one graph for each folder, the newest. Programs write theirs as a run begins: of each
    file the first hundred thousand events are looked at.

    Args:
        destination: where another graph is to go: a folder, or an event file.
    """
    folder = destination if destination.is_dir() else destination.parent
    for path in sorted(folder.glob(f"*{EVENTS}*"), reverse=True):
        if path == destination:
            continue
        try:
            with path.open("rb") as stream:
                if any(map(_is_graph, islice(_events(stream), _EVENTS_READ))):
                    return path
        except OSError:
            continue
    return None


def _events(stream: BinaryIO) -> Iterator[bytes]:
    """Yield how each event begins, and go past the rest: files of long runs have millions.

    An event is its length, a checksum of that, the message, and a checksum of it.
    """
    while len(header := stream.read(_HEADER.size)) == _HEADER.size:
        length = _HEADER.unpack(header)[0]
        start = stream.read(min(length, _LONGEST_START))
        yield start
        try:
            stream.seek(length - len(start) + _CHECKSUM, 1)
        except (
            OSError,
            OverflowError,
            ValueError,
        ):  # what is no event file has lengths of all kinds
            return


def _is_graph(event: bytes) -> bool:
    """Return whether an event holds a graph: that field comes behind its time and step."""
    rest = event
    if rest[:1] == _WALL_TIME:
        rest = rest[9:]
    if rest[:1] == _STEP:
        rest = rest[1:].lstrip(bytes(range(0x80, 0x100)))[1:]
    return rest[:1] == _GRAPH_DEF


def graph_def(graph: AutogradGraph) -> Any:
    """Return the graph as a ``GraphDef`` message: forward ops, and what flows into them.

    TensorBoard draws forward graphs, so that an op's inputs are those that its gradient goes to.
    """
    graph_pb2, node_def = _proto("graph_pb2"), _proto("node_def_pb2").NodeDef
    versions = _proto("versions_pb2").VersionDef
    names = [_name(node, graph) for node in graph.nodes]
    inputs: dict[int, list[str]] = defaultdict(list)
    for edge in graph.edges:
        output = f":{edge.output_index}" if edge.output_index else ""
        inputs[edge.source].append(names[edge.target - 1] + output)
    messages = [
        node_def(
            name=names[node.id - 1],
            op=_clean(_op(node)),
            input=inputs[node.id],
            attr=_attributes(node),
        )
        for node in graph.nodes
    ]
    return graph_pb2.GraphDef(node=messages, versions=versions(producer=22))


def _op(node: Node) -> str:
    if node.leaf is not None:
        return "Parameter" if node.leaf.is_parameter else "Leaf"
    return node.op.partition("Backward")[0] or node.op


def _name(node: Node, graph: AutogradGraph) -> str:
    """Name a node by its modules, and by its id so that no two share a name."""
    if node.leaf is not None:
        scope, _, own = (node.leaf.name if node.leaf.names else "").rpartition(".")
        own = f"{own or 'leaf'}_{node.id}"
    else:
        scope, own = "", f"{_op(node)}_{node.id}"
        call = None if node.call is None else graph.calls[node.call - 1]
        if call is not None:
            # The outermost module has no path; its class stands for it.
            scope = call.path or call.kind
            if call.number > 1:
                scope += f".call_{call.number}"
    parts = [part for part in scope.split(".") if part]
    return "/".join(_clean(part) for part in (*parts, own))


def _clean(text: str) -> str:
    cleaned = _NOT_IN_A_NAME.sub("_", text)[:_NAME_LENGTH]
    return cleaned if cleaned[:1].isalnum() else f"x{cleaned}"


def _attributes(node: Node) -> dict[str, Any]:
    attr_value = _proto("attr_value_pb2").AttrValue
    shape = _proto("tensor_shape_pb2").TensorShapeProto
    outputs = node.outputs if node.leaf is None else (node.leaf.type,)
    known = [output for output in outputs if output is not None]
    attributes: dict[str, Any] = {}
    if known:
        attributes["_output_shapes"] = attr_value(
            list=attr_value.ListValue(
                shape=[
                    shape(dim=[shape.Dim(size=size) for size in output.shape]) for output in known
                ]
            )
        )
        if known[0].dtype in _ITEMS:
            attributes["T"] = attr_value(type=_ITEMS[known[0].dtype])
    words = {
        "saved_bytes": str(node.saved_bytes) if node.saved else "",
        "saved": "; ".join(f"{saved.name} {short_type(saved.type)}" for saved in node.saved),
        "sequence_number": "" if node.sequence_number is None else str(node.sequence_number),
        "source": (
            "" if node.source is None else f"{display_path(node.source.path)}:{node.source.line}"
        ),
        "names": " = ".join(node.leaf.names) if node.leaf is not None else "",
    }
    for name, value in words.items():
        if value:
            attributes[name] = attr_value(s=value.encode("utf-8", "replace"))
    return attributes
