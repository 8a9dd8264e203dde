"""Seed mistakes in training loops, modules and Functions, one in one place of a file each.

Every operator makes a mistake that some rule should see. Left out are, by rule and not by hand:

- what torch runs just as the original, such as a second ``zero_grad()``;
- what fails at once without any linter: a plain list whose ``add_module`` is called, a write to an
  input that is a function;
- loops in files that import an engine which may manage them (Accelerate, DeepSpeed ...): the
  linter says that it does not judge these;
- ``no_grad`` taken from where the model that is in evaluation mode is not seen to run repeatedly
  (unit tests, one forward of a script, a function of another file that is handed the model):
  nothing shows there that graphs are built.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_lint.model.knowledge import ENGINE_MODULES, ENGINE_PACKAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Block = list[ast.stmt]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one seeded mistake: where, by which operator, and which rule should see it.

    ``first`` and ``last`` are the lines of the loop, method or class that was mutated.
    """

    operator: str
    code: str
    function: str
    source: str
    first: int
    last: int


class File:
    """A source file whose statements can be deleted, moved and doubled by lines."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True)
        self.tree = ast.parse(text)
        self.blocks = list(_blocks(self.tree, ""))
        self.torch = next(
            (
                alias.asname
                for node in ast.walk(self.tree)
                if isinstance(node, ast.Import)
                for alias in node.names
                if alias.name == "torch" and alias.asname
            ),
            "torch",
        )

    def without(self, node: ast.stmt) -> str:
        """Return the source with ``pass`` in place of a statement."""
        return self._joined(node, [self.indent(node) + "pass\n"])

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
        """Return the source with the text of an expression or statement replaced."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        column, end_column = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        first, last = self.lines[line - 1], self.lines[end - 1]
        if not (first.isascii() and last.isascii()):
            return None
        changed = first[:column] + new + last[end_column:]
        return "".join([*self.lines[: line - 1], changed, *self.lines[end:]])

    def inserted(self, node: ast.stmt, *new: str) -> str:
        """Return the source with statements before ``node``."""
        place = _first_line(node) - 1
        indent = self.indent(node)
        added = [f"{indent}{line}\n" for line in new]
        return "".join([*self.lines[:place], *added, *self.lines[place:]])

    def inserted_after(self, node: ast.stmt, *new: str) -> str:
        """Return the source with statements after ``node``."""
        place = node.end_lineno or node.lineno
        indent = self.indent(node)
        added = [f"{indent}{line}\n" for line in new]
        return "".join([*self.lines[:place], *added, *self.lines[place:]])

    def mutant(
        self, operator: str, code: str, function: str, source: str, node: ast.stmt
    ) -> Mutant:
        """Return a mutant of what is inside ``node``."""
        # A few lines of room for what an operator has added.
        last = (node.end_lineno or node.lineno) + 4
        return Mutant(operator, code, function, source, node.lineno, last)

    def moved_out(self, node: ast.stmt, loop: ast.stmt) -> str:
        """Return the source with a statement of a loop's body before the loop."""
        lines = list(self.lines)
        own = self._own(node)
        start = _first_line(node) - 1
        lines[start : start + len(own)] = [self.indent(node) + "pass\n"]
        lines[loop.lineno - 1 : loop.lineno - 1] = [
            self.indent(loop) + line.lstrip() for line in own
        ]
        return "".join(lines)

    def without_line(self, node: ast.AST) -> str:
        """Return the source without the lines of a decorator."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        return "".join([*self.lines[: line - 1], *self.lines[end:]])

    def indent(self, node: ast.stmt) -> str:
        """Return the white space before a statement."""
        text = self.lines[_first_line(node) - 1]
        return text[: len(text) - len(text.lstrip())]

    def _own(self, node: ast.stmt) -> list[str]:
        return self.lines[_first_line(node) - 1 : node.end_lineno]

    def _joined(self, node: ast.stmt, new: list[str]) -> str:
        return "".join([*self.lines[: _first_line(node) - 1], *new, *self.lines[node.end_lineno :]])


def _first_line(node: ast.stmt) -> int:
    return node.lineno


def _blocks(
    node: ast.AST, function: str, *, in_loop: ast.stmt | None = None
) -> Iterator[tuple[str, ast.stmt | None, Block]]:
    """Yield every block of statements with its function and the loop that repeats it."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if not isinstance(block, list) or not block or not isinstance(block[0], ast.stmt):
            continue
        repeats = node if isinstance(node, (ast.For, ast.While)) else in_loop
        yield function, repeats, block
        for child in block:
            inner, loop = function, repeats
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{function}.{child.name}" if function else child.name
                loop = None
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
    owner = _owner(node).lower()
    return _method(node) == "step" and ("opt" in owner or "scaler" in owner) and "sch" not in owner


def _is_backward(node: ast.stmt) -> bool:
    """Tell whether ``backward()`` is called on a loss: engines have a method of that name too."""
    call = _call(node)
    return call is not None and _method(node) == "backward" and not call.args


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
    managed = _imports_engine(file.tree)
    for function, loop, block in file.blocks:
        if len({node.lineno for node in block}) < len(block):
            continue  # statements that share a line can't be moved by lines
        if not managed and isinstance(loop, (ast.For, ast.While)):
            for operator, code, source in _of_loop(file, loop, block):
                if source is not None:
                    yield file.mutant(operator, code, function, source, loop)
        yield from _of_block(file, function, block, is_repeated=loop is not None)
    yield from _of_modules(file)
    yield from _of_functions(file)


def _imports_engine(tree: ast.Module) -> bool:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return any(
        name.partition(".")[0] in ENGINE_PACKAGES
        or any(name == module or name.startswith(f"{module}.") for module in ENGINE_MODULES)
        for name in names
    )


Change = tuple[str, str, "str | None"]


def _of_loop(file: File, loop: ast.For | ast.While, block: Block) -> Iterator[Change]:
    """Break the order of a training step, one step of one optimizer at a time."""
    steps = _find(block, _is_step)
    backwards = _find(block, _is_backward)
    start = 0
    for step in steps:
        end = block.index(step)
        group = block[start:end]
        start = end + 1
        own = [node for node in backwards if node in group]
        if len(own) == 1:
            zeros = [node for node in group if _method(node) == "zero_grad"]
            mine = [node for node in zeros if _owner(node) == _stepped(step)]
            yield from _of_step(file, group, own[0], step, mine)
    if len(steps) == len(backwards) == 1:
        yield from _of_single_step(file, loop, block, backwards[0], steps[0])


def _stepped(step: ast.stmt) -> str:
    """Return the optimizer that steps, perhaps by way of a gradient scaler."""
    call = _call(step)
    if call is not None and "scaler" in _owner(step).lower() and call.args:
        return ast.unparse(call.args[0])
    return _owner(step)


def _of_step(
    file: File, group: Block, backward: ast.stmt, step: ast.stmt, zeros: Block
) -> Iterator[Change]:
    scaled = "scaler" in _owner(step).lower()
    yield "duplicate step", "GCS310" if scaled else "GCS303", file.doubled(step)
    name = _owner(backward)
    if name.isidentifier():
        cut = f"{name} = {name}.detach()"
        yield "detach the loss", "GCS401", file.inserted(backward, cut)
        forced = f"{name} = {name}.detach().requires_grad_()"
        yield "force requires_grad", "GCS405", file.inserted(backward, forced)
        made = [
            node
            for node in group
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
        ]
        if len(made) == 1 and made[0].lineno == made[0].end_lineno:
            text = ast.unparse(made[0])
            if "(" in text and not any(
                isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name
                for node in group
            ):
                indent = " " * made[0].col_offset
                under = f"with {file.torch}.no_grad():\n{indent}    {text}"
                if all(character == " " for character in file.indent(made[0])):
                    yield "loss under no_grad", "GCS402", file.replaced(made[0], under)
    if len(zeros) == 1 and group.index(zeros[0]) < group.index(backward):
        moved = file.moved_after(zeros[0], backward)
        yield "move zero_grad after backward", "GCS302", moved
        yield "delete backward", "GCS303", file.without(backward)
        yield "move backward after step", "GCS303", file.moved_after(backward, step)


def _of_single_step(
    file: File, loop: ast.For | ast.While, block: Block, backward: ast.stmt, step: ast.stmt
) -> Iterator[Change]:
    zeros = _find(block, lambda node: _method(node) == "zero_grad")
    clips = _find(block, _is_clip)
    unscales = _find(block, lambda node: _method(node) == "unscale_")
    updates = _find(block, lambda node: _method(node) == "update" and "scaler" in _owner(node))
    schedules = _find(block, _is_schedule)
    if len(zeros) == 1:
        yield "delete zero_grad", "GCS301", file.without(zeros[0])
        if loop.body == block:
            yield "zero_grad before the loop", "GCS301", file.moved_out(zeros[0], loop)
        if block.index(backward) < block.index(zeros[0]):
            moved = file.moved_before(zeros[0], step)
            yield "move zero_grad before step", "GCS302", moved
    name = _owner(backward)
    if name.isidentifier():
        if "retain_graph" not in ast.unparse(backward):
            retained = file.replaced(backward, f"{name}.backward(retain_graph=True)")
            yield "retain the graph", "GCS203", retained
        kept = file.inserted(step, f"kept_{name}.append({name})")
        yield "append the loss", "GCS201", f"kept_{name} = []\n{kept}"
        summed = file.inserted(step, f"sum_{name} += {name}")
        place = loop.lineno - 1
        lines = summed.splitlines(keepends=True)
        lines.insert(place, f"{file.indent(loop)}sum_{name} = 0.0\n")
        yield "add up the loss", "GCS201", "".join(lines)
    if len(clips) == 1:
        yield "move clip after step", "GCS304", file.moved_after(clips[0], step)
        yield "move clip before backward", "GCS304", file.moved_before(clips[0], backward)
    if len(unscales) == 1 and len(clips) == 1:
        yield "delete unscale_", "GCS305", file.without(unscales[0])
        yield "move unscale_ after clip", "GCS305", file.moved_after(unscales[0], clips[0])
        yield "duplicate unscale_", "GCS310", file.doubled(unscales[0])
    if len(updates) == 1:
        yield "delete update", "GCS310", file.without(updates[0])
    if len(schedules) == 1 and step.lineno < schedules[0].lineno:
        moved = file.moved_before(schedules[0], step)
        yield "move scheduler before step", "GCS306", moved
    differentiated = {_owner(backward)}
    for node in block:
        yield from _without_item(file, node, differentiated)


def _without_item(file: File, statement: ast.stmt, differentiated: set[str]) -> Iterator[Change]:
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
            yield f"drop {node.func.attr}()", "GCS201", source


_NO_GRAD = {"torch.no_grad()", "no_grad()", "torch.inference_mode()"}


def _evaluated(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the models that are put into evaluation mode."""
    return {
        _owner(node) for node in nodes if isinstance(node, ast.stmt) and _method(node) == "eval"
    }


def _runs_repeatedly(node: ast.stmt, models: set[str], function: str, *, is_repeated: bool) -> bool:
    """Tell whether one of these models is called in a loop below, and not in a test."""
    if function.rpartition(".")[2].lstrip("_").startswith("test_") or ".Test" in f".{function}":
        return False
    return any(
        isinstance(call, ast.Call) and ast.unparse(call.func) in models
        for loop in ast.walk(node)
        if isinstance(loop, (ast.For, ast.While)) or (is_repeated and loop is node)
        for call in ast.walk(loop)
    )


def _of_block(file: File, function: str, block: Block, *, is_repeated: bool) -> Iterator[Mutant]:
    for node in block:
        if (
            isinstance(node, ast.With)
            and len(node.items) == 1
            and ast.unparse(node.items[0].context_expr) in _NO_GRAD
            and _runs_repeatedly(
                node, _evaluated(block[: block.index(node)]), function, is_repeated=is_repeated
            )
        ):
            source = file.replaced(node.items[0].context_expr, "open('x')")
            if source is not None:
                source = source.replace("with open('x'):", "if True:")
                yield file.mutant("drop no_grad", "GCS204", function, source, node)
        if isinstance(node, ast.FunctionDef) and _runs_repeatedly(
            node, _evaluated(ast.walk(node)), node.name, is_repeated=False
        ):
            for decorator in node.decorator_list:
                if ast.unparse(decorator) in _NO_GRAD:
                    name = f"{function}.{node.name}" if function else node.name
                    source = file.without_line(decorator)
                    yield file.mutant("drop @no_grad", "GCS204", name, source, node)


def _of_modules(file: File) -> Iterator[Mutant]:
    """Break the parameters of modules."""
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.ClassDef) or not any(
            ast.unparse(base).endswith("Module") for base in node.bases
        ):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                for statement in ast.walk(method):
                    if isinstance(statement, ast.Assign):
                        yield from _of_attribute(file, node, statement)


def _of_attribute(file: File, owner: ast.ClassDef, node: ast.Assign) -> Iterator[Mutant]:
    value, function = node.value, f"{owner.name}.__init__"
    target = ast.unparse(node.targets[0])
    if not isinstance(value, ast.Call) or not target.startswith("self."):
        return
    called = ast.unparse(value.func)
    if called in {"nn.ModuleList", "torch.nn.ModuleList"}:
        kept = ast.unparse(value.args[0]) if value.args else "[]"
        registers = f"{target}.add_module" in ast.unparse(owner)
        is_list = kept.startswith("[") and ("nn." in kept or kept == "[]")
        if len(value.args) < 2 and is_list and not registers:
            source = file.replaced(value, kept)
            if source is not None:
                yield file.mutant("ModuleList to list", "GCS404", function, source, owner)
    if called in {"nn.Parameter", "torch.nn.Parameter"} and "requires_grad" not in ast.unparse(
        node
    ):
        source = file.replaced(value, f"{ast.unparse(value)} * 0.02")
        if source is not None:
            yield file.mutant("scale the Parameter", "GCS102", function, source, owner)
        written = file.inserted_after(node, f"{target} += 1.0")
        yield file.mutant("write to the Parameter", "GCS101", function, written, owner)


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
            yield from _of_method(file, node.name, method)


def _of_method(file: File, owner: str, method: ast.FunctionDef) -> Iterator[Mutant]:
    function = f"{owner}.{method.name}"
    for decorator in method.decorator_list:
        text = ast.unparse(decorator)
        if text.endswith("once_differentiable"):
            dropped = file.without_line(decorator)
            yield file.mutant("drop once_differentiable", "GCS504", function, dropped, method)
    for statement in ast.walk(method):
        if isinstance(statement, ast.stmt):
            for operator, code, source in _of_statement(file, method, statement):
                if source is not None:
                    yield file.mutant(operator, code, function, source, method)
    names = [argument.arg for argument in method.args.args[1:]]
    if method.name == "backward" and names:
        source = file.inserted(method.body[-1], f"alias = {names[0]}", "alias.mul_(2)")
        yield file.mutant("write to the gradient", "GCS506", function, source, method)
    saved = {
        node.id
        for call in ast.walk(method)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".save_for_backward")
        for node in ast.walk(call)
        if isinstance(node, ast.Name)
    }
    inputs = [name for name in names if name in saved]
    if method.name == "forward" and inputs:
        source = file.inserted(method.body[-1], f"alias = {inputs[0]}", "alias.mul_(2)")
        yield file.mutant("write to the input", "GCS503", function, source, method)


def _of_statement(file: File, method: ast.FunctionDef, node: ast.stmt) -> Iterator[Change]:
    call = _call(node)
    if isinstance(node, ast.Expr) and _method(node) == "mark_dirty":
        yield "drop mark_dirty", "GCS503", file.without(node)
    if isinstance(node, ast.Expr) and call is not None and _method(node) == "save_for_backward":
        parameters = {argument.arg for argument in method.args.args}
        names = [arg.id for arg in call.args if isinstance(arg, ast.Name)]
        if len(call.args) == len(names) and parameters & set(names):
            context = method.args.args[0].arg
            saved = "; ".join(f"{context}.{name} = {name}" for name in names)
            yield "save on ctx", "GCS205", file.replaced(node, saved)
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        elements = node.value.elts
        if method.name == "backward" and len(elements) > 1 and ast.unparse(elements[-1]) != "None":
            kept = ", ".join(map(ast.unparse, elements[:-1]))
            yield "drop a gradient", "GCS501", file.replaced(node.value, f"({kept},)")
    if method.name == "backward" and call is not None and isinstance(node, ast.Assign):
        name = _owner(node)
        if _method(node) == "clone" and name in {item.arg for item in method.args.args}:
            yield "drop clone()", "GCS506", file.replaced(call, name)
