"""Viewers of autograd graphs side by side: which subjects each can draw, how fast, how large.

Each runs in a process of its own, with a limit of time, from a tensor or a module to a file. A
viewer that is not installed is left out and said so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.graph_subjects import SUBJECTS
from benchmarks.harness import Scores, as_markdown, run_as_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from benchmarks.graph_subjects import Subject

SECONDS = 120


def _ours(subject: Subject, folder: Path, suffix: str, *, everything: bool = False) -> Path:
    from gradcheck_suite.graph import record
    from gradcheck_suite.graph.save import save_graph

    model, inputs = subject
    start = time.perf_counter()
    with record(model, source=everything, backward=everything) as recording:
        loss = model(*inputs).sum()
        if everything:
            loss.backward()
    path = save_graph(recording.trace_graph(loss, model=model), folder / f"graph{suffix}")
    _SPENT.append(time.perf_counter() - start)
    return path


def _torchviz(subject: Subject, folder: Path) -> Path:
    from torchviz import make_dot

    model, inputs = subject
    start = time.perf_counter()
    loss = model(*inputs).sum()
    names = dict(model.named_parameters())
    dot = make_dot(loss, params=names, show_attrs=True, show_saved=True)
    dot.format = "svg"
    path = Path(dot.render("graph", directory=folder))
    _SPENT.append(time.perf_counter() - start)
    return path


def _torchview(subject: Subject, folder: Path) -> Path:
    from torchview import draw_graph

    model, inputs = subject
    start = time.perf_counter()
    drawn = draw_graph(model, input_data=inputs, expand_nested=True)
    drawn.visual_graph.format = "svg"
    path = Path(drawn.visual_graph.render("graph", directory=folder))
    _SPENT.append(time.perf_counter() - start)
    return path


def _torchlens(subject: Subject, folder: Path) -> Path:
    from torchlens.options import VisualizationOptions
    from torchlens.visualization import show_model_graph

    model, inputs = subject
    options = VisualizationOptions(
        save_only=True, file_format="svg", container_path=str(folder / "graph")
    )
    start = time.perf_counter()
    show_model_graph(model, list(inputs), visualization=options)
    _SPENT.append(time.perf_counter() - start)
    return next(folder.glob("*.svg"))


def _add_graph(subject: Subject, folder: Path) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    model, inputs = subject
    start = time.perf_counter()
    with SummaryWriter(str(folder)) as writer:
        writer.add_graph(model, inputs)
    _SPENT.append(time.perf_counter() - start)
    return next(folder.iterdir())


def _fx(subject: Subject, folder: Path) -> Path:
    from torch.fx import symbolic_trace
    from torch.fx.passes.graph_drawer import FxGraphDrawer

    model, _ = subject
    start = time.perf_counter()
    drawing: Any = FxGraphDrawer(symbolic_trace(model), "graph").get_dot_graph()
    path = folder / "graph.svg"
    path.write_bytes(drawing.create_svg())
    _SPENT.append(time.perf_counter() - start)
    return path


_SPENT: list[float] = []
VIEWERS: dict[str, tuple[str, Callable[[Subject, Path], Path]]] = {
    "ours, .svg": ("gradcheck_suite", lambda s, f: _ours(s, f, ".svg")),
    "ours, .html": ("gradcheck_suite", lambda s, f: _ours(s, f, ".html")),
    "ours, all recorded": (
        "gradcheck_suite",
        lambda s, f: _ours(s, f, ".html", everything=True),
    ),
    "torchviz": ("torchviz", _torchviz),
    "torchview": ("torchview", _torchview),
    "torchlens": ("torchlens", _torchlens),
    "add_graph": ("tensorboard", _add_graph),
    "fx drawer": ("pydot", _fx),
}


_SHOWN: dict[str, str] = {
    "the ops that backward runs": r"AddmmBackward|LayerNormBackward",
    "names of parameters": r"norm1\W{1,3}weight|norm1.{0,80}weight",
    "modules": r"layers\W{1,3}[05]\b|TransformerEncoderLayer",
    "shapes": r"\b2, ?10, ?64\b|\b2x10x64\b|_output_shapes",
    "what is saved for backward": r"saved|SavedTensor|result1",
    "sizes in bytes": r"\d [KM]?i?B\b|\"bytes\"",
    "line of each op": r"graph_subjects\.py:\d|linear\.py:\d",
    "gradients": r"gradient \d",
}
"""What a file may show of the transformer, and what text in the file tells that it does."""
_SHOWN_OF = "6-layer transformer"


_PACKAGES = ("torch", "torchviz", "torchview", "torchlens", "tensorboard", "pydot")
_HEAD = """\
# Viewers of autograd graphs side by side

Written by `python -m benchmarks.graph_viewers --page docs/graph-viewers.md`; never edited by hand.
Nine subjects, each drawn in a process of its own: the time from the model and its inputs to a file
(forward included, imports not), the size of the file, or the exception. torchviz, torchview and
torchlens need Graphviz' `dot`, the drawer of torch.fx pydot as well; ours need neither. Versions:
{versions}."""


def run(arguments: argparse.Namespace) -> tuple[Scores, Scores]:
    """Let every viewer that is installed draw every subject."""
    installed = [name for name, (module, _) in VIEWERS.items() if importlib.util.find_spec(module)]
    rows: list[tuple[str, ...]] = []
    shown: dict[str, list[str] | None] = {}
    kept: Path | None = arguments.results
    known: dict[str, dict[str, Any]] = {}
    if kept is not None and kept.exists():
        known = json.loads(kept.read_text(encoding="utf-8"))
    ours_work = True
    for subject in SUBJECTS:
        cells: list[str] = []
        for viewer in installed:
            name = f"{viewer}: {subject}"
            if name not in known:
                known[name] = _attempt(viewer, subject, limit=arguments.seconds)
                if kept is not None:
                    kept.write_text(json.dumps(known), encoding="utf-8")
            drawn = known[name]
            cells.append(drawn.get("error") or f"{drawn['seconds']:.2f} s, {drawn['size']} KiB")
            ours_work &= not ("error" in drawn and viewer.startswith("ours"))
            if subject == _SHOWN_OF:
                shown[viewer] = drawn.get("shown")
        rows.append((subject, *cells))
        print(subject, *cells, sep=" | ", file=sys.stderr, flush=True)
    missing = [name for name in VIEWERS if name not in installed]
    left_out = f"; not installed here: {', '.join(missing)}" if missing else ""
    results = (
        Scores(
            title="Viewers of autograd graphs, from the model and its inputs to a file",
            command="python -m benchmarks.graph_viewers",
            columns=("subject", *installed),
            rows=tuple(rows),
            goal=f"all nine subjects drawn by ours{left_out}",
            met=ours_work,
        ),
        Scores(
            title=f"What is in the file of the {_SHOWN_OF}",
            command="python -m benchmarks.graph_viewers",
            columns=("", *installed),
            rows=tuple(
                (what, *(_tells(shown[viewer], what) for viewer in installed)) for what in _SHOWN
            ),
            goal="everything where everything was recorded",
            met=set(shown["ours, all recorded"] or ()) == set(_SHOWN),
        ),
    )
    if arguments.page is not None:
        versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES if _is_there(name))
        text = "\n\n".join([_HEAD.format(versions=versions), *map(as_markdown, results)])
        arguments.page.write_text(text + "\n", encoding="utf-8")
    return results


def _tells(shown: list[str] | None, what: str) -> str:
    if shown is None:
        return "fails"
    return "yes" if what in shown else "no"


def _is_there(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _attempt(viewer: str, subject: str, *, limit: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.graph_viewers", "--one", viewer, subject]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # Graphviz' dot, which it may have started, would go on.
            os.killpg(process.pid, signal.SIGKILL)
            return {"error": f"fails: over {limit:.0f} s"}
    if process.returncode or not output.strip():
        return {"error": "fails: ends the process"}
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


def _one(viewer: str, subject: str) -> None:
    """Draw one subject with one viewer, and print figures; its own output is thrown away."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    made = SUBJECTS[subject]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                path = VIEWERS[viewer][1](made, Path(folder))
            text = path.read_bytes().decode("utf-8", "replace")
            answer: dict[str, Any] = {
                "seconds": _SPENT[-1],
                "size": f"{path.stat().st_size // 1024:,}",
                "shown": [what for what, sign in _SHOWN.items() if re.search(sign, text)],
            }
        except Exception as error:  # noqa: BLE001 - the failure is the figure
            answer = {"error": f"fails: {type(error).__name__}"}
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # some viewers leave graphs whose release ends the process


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the limit of time, and where results are kept."""
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="limit for one picture (default: 120)"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables as a page")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="keep results here, and go on from them"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _one(*sys.argv[2:])
    raise SystemExit(run_as_command(run, add_options))
