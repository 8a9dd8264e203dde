"""How many seeded mistakes gradcheck-lint finds: mutants of training loops and Functions.

Each operator makes one mistake in one place of a file that has none of that kind there. A mutant
counts as found if the expected rule reports something in the mutated function that it did not
report before. The folder of sources is an argument; the default is a handful of loops that are
shipped with the tests.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_lint.engine import lint_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCES = Path(__file__).parents[1] / "tests" / "data" / "lint_recall"
GOAL = 0.9

Block = list[ast.stmt]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one seeded mistake: where, by which operator, and which rule should see it."""

    operator: str
    code: str
    function: str
    source: str


@dataclass(frozen=True, slots=True)
class Score:
    """How many mutants of one operator were found."""

    operator: str
    code: str
    found: int
    total: int


class File:
    """A source file whose statements can be deleted, moved and doubled by lines."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True)
        self.tree = ast.parse(text)
        self.blocks = list(_blocks(self.tree, ""))

    def without(self, node: ast.stmt) -> str:
        """Return the source with ``pass`` in place of a statement."""
        return self._joined(node, [self._indent(node) + "pass\n"])

    def doubled(self, node: ast.stmt) -> str:
        """Return the source with a statement twice."""
        own = self._own(node)
        return self._joined(node, own + own)

    def moved_after(self, node: ast.stmt, other: ast.stmt) -> str:
        """Return the source with ``node`` after ``other``, which is in the same block."""
        lines = list(self.lines)
        own = self._own(node)
        end = other.end_lineno or other.lineno
        start = _first_line(node) - 1
        if end <= start:
            del lines[start : start + len(own)]
            lines[end:end] = own
        else:
            lines[end:end] = own
            del lines[start : start + len(own)]
        return "".join(lines)

    def moved_before(self, node: ast.stmt, other: ast.stmt) -> str:
        """Return the source with ``node`` before ``other``, which is in the same block."""
        lines = list(self.lines)
        own = self._own(node)
        start, place = _first_line(node) - 1, _first_line(other) - 1
        del lines[start : start + len(own)]
        lines[place:place] = own
        return "".join(lines)

    def replaced(self, node: ast.AST, new: str) -> str | None:
        """Return the source with the text of a one-line expression replaced."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if line != end or not self.lines[line - 1].isascii():
            return None
        text = self.lines[line - 1]
        changed = text[: node.col_offset] + new + text[node.end_col_offset :]  # type: ignore[attr-defined]
        return "".join([*self.lines[: line - 1], changed, *self.lines[line:]])

    def inserted(self, node: ast.stmt, *new: str) -> str:
        """Return the source with statements before ``node``."""
        place = _first_line(node) - 1
        indent = self._indent(node)
        added = [f"{indent}{line}\n" for line in new]
        return "".join([*self.lines[:place], *added, *self.lines[place:]])

    def _indent(self, node: ast.stmt) -> str:
        text = self.lines[_first_line(node) - 1]
        return text[: len(text) - len(text.lstrip())]

    def _own(self, node: ast.stmt) -> list[str]:
        return self.lines[_first_line(node) - 1 : node.end_lineno]

    def _joined(self, node: ast.stmt, new: list[str]) -> str:
        return "".join([*self.lines[: _first_line(node) - 1], *new, *self.lines[node.end_lineno :]])


def _first_line(node: ast.stmt) -> int:
    return node.lineno


def _blocks(
    node: ast.AST, function: str, *, in_loop: bool = False
) -> Iterator[tuple[str, bool, Block]]:
    """Yield every block of statements with its function and whether it repeats."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if not isinstance(block, list) or not block or not isinstance(block[0], ast.stmt):
            continue
        repeats = in_loop or isinstance(node, (ast.For, ast.While))
        yield function, repeats, block
        for child in block:
            inner, loop = function, repeats
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{function}.{child.name}" if function else child.name
                loop = False
            yield from _blocks(child, inner, in_loop=loop)
    for handler in getattr(node, "handlers", []):
        yield from _blocks(handler, function, in_loop=in_loop)


def _call(node: ast.stmt) -> ast.Call | None:
    """Return the call that a statement consists of, perhaps with its result kept."""
    value = getattr(node, "value", None)
    if isinstance(node, (ast.Expr, ast.Assign)) and isinstance(value, ast.Call):
        return value
    return None


def _method(node: ast.stmt) -> str:
    call = _call(node)
    return call.func.attr if call and isinstance(call.func, ast.Attribute) else ""


def _owner(node: ast.stmt) -> str:
    call = _call(node)
    return ast.unparse(call.func.value) if call and isinstance(call.func, ast.Attribute) else ""


def _is_step(node: ast.stmt) -> bool:
    return _method(node) == "step" and "sched" not in _owner(node).lower()


def _is_schedule(node: ast.stmt) -> bool:
    return _method(node) == "step" and "sched" in _owner(node).lower()


def _is_clip(node: ast.stmt) -> bool:
    call = _call(node)
    return call is not None and "clip_grad" in ast.unparse(call.func)


def _find(block: Block, test: Callable[[ast.stmt], bool]) -> list[ast.stmt]:
    return [node for node in block if test(node)]


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of one file."""
    file = File(text)
    for function, repeats, block in file.blocks:
        if repeats:
            yield from _of_loop(file, function, block)
        yield from _of_block(file, function, block)
    yield from _of_functions(file)


def _of_loop(file: File, function: str, block: Block) -> Iterator[Mutant]:
    zeros = _find(block, lambda node: _method(node) == "zero_grad")
    backwards = _find(block, lambda node: _method(node) == "backward")
    steps = _find(block, _is_step)
    clips = _find(block, _is_clip)
    unscales = _find(block, lambda node: _method(node) == "unscale_")
    if not backwards or not steps:
        return

    def made(operator: str, code: str, source: str | None) -> Iterator[Mutant]:
        if source is not None:
            yield Mutant(operator, code, function, source)

    if len(zeros) == len(steps) == len(backwards) == 1:
        zero, backward, step = zeros[0], backwards[0], steps[0]
        yield from made("delete zero_grad", "GCS301", file.without(zero))
        if block.index(zero) < block.index(backward) < block.index(step):
            moved = file.moved_after(zero, backward)
            yield from made("move zero_grad after backward", "GCS302", moved)
    if len(backwards) == 1 and len(steps) == 1:
        backward, step = backwards[0], steps[0]
        yield from made("delete backward", "GCS303", file.without(backward))
        if zeros and block.index(backward) < block.index(step):
            moved = file.moved_after(backward, step)
            yield from made("move backward after step", "GCS303", moved)
        yield from made(
            "duplicate step", "GCS303" if not unscales else "GCS310", file.doubled(step)
        )
        name = _owner(backward)
        if name.isidentifier():
            retained = file.replaced(backward, f"{name}.backward(retain_graph=True)")
            yield from made("retain the graph", "GCS203", retained)
            kept = file.inserted(step, f"kept_{name}.append({name})")
            yield from made("append the loss", "GCS201", f"kept_{name} = []\n{kept}")
    if len(clips) == 1 and len(steps) == 1 and len(backwards) == 1:
        yield from made("move clip after step", "GCS304", file.moved_after(clips[0], steps[0]))
        yield from made(
            "move clip before backward", "GCS304", file.moved_before(clips[0], backwards[0])
        )
    if len(unscales) == 1 and len(clips) == 1:
        yield from made("delete unscale_", "GCS305", file.without(unscales[0]))
        yield from made(
            "move unscale_ after clip", "GCS305", file.moved_after(unscales[0], clips[0])
        )
        yield from made("duplicate unscale_", "GCS310", file.doubled(unscales[0]))
    updates = _find(block, lambda node: _method(node) == "update" and "scaler" in _owner(node))
    if len(updates) == 1:
        yield from made("delete update", "GCS310", file.without(updates[0]))
    schedules = _find(block, _is_schedule)
    if len(schedules) == 1 and len(steps) == 1 and steps[0].lineno < schedules[0].lineno:
        yield from made(
            "move scheduler before step", "GCS306", file.moved_before(schedules[0], steps[0])
        )
    differentiated = {_owner(node) for node in backwards}
    for node in block:
        yield from _without_item(file, function, node, differentiated)


def _without_item(
    file: File, function: str, statement: ast.stmt, differentiated: set[str]
) -> Iterator[Mutant]:
    """Drop `.item()` or `.detach()` of a loss that is summed up or appended."""
    call = _call(statement)
    is_append = call is not None and _method(statement) == "append"
    if not isinstance(statement, ast.AugAssign) and not is_append:
        return
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"item", "detach"}
            and ast.unparse(node.func.value) in differentiated
        ):
            source = file.replaced(node, ast.unparse(node.func.value))
            if source is not None:
                yield Mutant(f"drop {node.func.attr}()", "GCS201", function, source)


def _of_block(file: File, function: str, block: Block) -> Iterator[Mutant]:
    for node in block:
        if (
            isinstance(node, ast.With)
            and len(node.items) == 1
            and ast.unparse(node.items[0].context_expr) in {"torch.no_grad()", "no_grad()"}
            and any(_method(other) == "eval" for other in block[: block.index(node)])
        ):
            source = file.replaced(node.items[0].context_expr, "open('x')")
            if source is not None:
                source = source.replace("with open('x'):", "if True:")
                yield Mutant("drop no_grad", "GCS204", function, source)
        value = getattr(node, "value", None)
        if (
            isinstance(node, ast.Assign)
            and isinstance(value, ast.Call)
            and ast.unparse(value.func) in {"nn.ModuleList", "torch.nn.ModuleList"}
            and len(value.args) == 1
            and isinstance(value.args[0], (ast.List, ast.ListComp))
            and "nn." in ast.unparse(value.args[0])
        ):
            source = file.replaced(value, ast.unparse(value.args[0]))
            if source is not None:
                yield Mutant("ModuleList to list", "GCS404", function, source)


def _of_functions(file: File) -> Iterator[Mutant]:
    """Break the classes that derive from torch.autograd.Function."""
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.ClassDef) or not any(
            ast.unparse(base).endswith("Function") for base in node.bases
        ):
            continue
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        forward, backward = methods.get("forward"), methods.get("backward")
        if forward is None or backward is None:
            continue
        for method in (forward, backward):
            yield from _of_method(file, f"{node.name}.{method.name}", method)


def _of_method(file: File, function: str, method: ast.FunctionDef) -> Iterator[Mutant]:
    for statement in ast.walk(method):
        if isinstance(statement, ast.Expr) and _method(statement) == "mark_dirty":
            yield Mutant("drop mark_dirty", "GCS503", function, file.without(statement))
        if isinstance(statement, ast.Expr) and _method(statement) == "save_for_backward":
            call = _call(statement)
            names = [arg.id for arg in call.args if isinstance(arg, ast.Name)] if call else []
            if call is not None and len(call.args) == len(names) == 1:
                text = f"ctx.{names[0]} = {names[0]}"
                source = file.replaced(statement, text)
                if source is not None:
                    yield Mutant("save on ctx", "GCS205", function, source)
        if (
            isinstance(statement, ast.Return)
            and isinstance(statement.value, ast.Tuple)
            and method.name == "backward"
            and len(statement.value.elts) > 1
        ):
            kept = ", ".join(ast.unparse(element) for element in statement.value.elts[:-1])
            source = file.replaced(statement.value, f"({kept},)")
            if source is not None:
                yield Mutant("drop a gradient", "GCS501", function, source)
    names = [argument.arg for argument in method.args.args[1:]]
    if method.name == "backward" and names:
        source = file.inserted(method.body[-1], f"alias = {names[0]}", "alias.mul_(2)")
        yield Mutant("write to the gradient", "GCS506", function, source)


def found_in(source: str) -> Counter[tuple[str, str]]:
    """Return how often each rule reports something in each function."""
    findings = lint_source(source.encode(), "sample.py")
    return Counter(
        (finding.code, (finding.location.function or "") if finding.location else "")
        for finding in findings
    )


def score(paths: list[Path], *, misses: list[Mutant] | None = None) -> list[Score]:
    """Return the share of mutants found, by operator."""
    total: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="ignore")
        try:
            made = list(mutants(text)) if "torch" in text else []
        except (SyntaxError, ValueError):
            continue
        before = found_in(text) if made else Counter()
        for mutant in made:
            key = (mutant.operator, mutant.code)
            after = found_in(mutant.source)
            is_found = any(
                count > before[code, function]
                for (code, function), count in after.items()
                if code == mutant.code and function.endswith(mutant.function)
            )
            total[key] += 1
            found[key] += is_found
            if not is_found and misses is not None:
                misses.append(Mutant(mutant.operator, mutant.code, f"{path}:{mutant.function}", ""))
    return [Score(*key, found[key], total[key]) for key in sorted(total)]


def main() -> int:
    """Print the table by operator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=SOURCES)
    parser.add_argument("--misses", action="store_true", help="print what was not found")
    arguments = parser.parse_args()
    misses: list[Mutant] = []
    scores = score(sorted(arguments.folder.rglob("*.py")), misses=misses)
    print(f"{'operator':32} {'rule':8} {'found':>6} {'of':>6}")
    for row in scores:
        print(f"{row.operator:32} {row.code:8} {row.found:6} {row.total:6}")
    found, total = sum(row.found for row in scores), sum(row.total for row in scores)
    print(f"{'all':32} {'':8} {found:6} {total:6}  {found / max(total, 1):.1%}")
    if arguments.misses:
        for miss in misses:
            print(miss.operator, miss.code, miss.function)
    return 0 if total and found >= GOAL * total else 1


if __name__ == "__main__":
    sys.exit(main())
