"""Write values, functions, classes and modules as source text that makes them again."""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import re
import symtable
import sys
import textwrap
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite._runtime.frames import Owner, owner_of_file
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MOST_ENTRIES", "Sources"]

MOST_ENTRIES = 4096
"""How many numbers a script may hold. Chosen: more than that nobody reads or mails."""
_FUTURE = "from __future__ import annotations\n"
_PLAIN = (
    *(bool, int, str, bytes, complex, range, slice, type(None), type(Ellipsis)),
    *(torch.dtype, torch.device),
)
_SPELLED = {type(Ellipsis): "...", torch.device: "torch.{!r}"}
_HOLDERS = (torch, torch.nn.functional, torch.Tensor, torch.linalg, torch.special, torch.fft)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_REGISTERED = frozenset(["_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"])


class Sources:
    """Collects the definitions that a script needs, in an order in which they can be run.

    Attributes:
        imports: the import statements.
        blocks: the definitions.
    """

    def __init__(self) -> None:
        self.imports: dict[str, None] = {}
        self.blocks: list[str] = []
        self._known: dict[str, object] = {}
        self._variables: dict[int, str] = {}
        self._entries = 0

    def variable(self, name: str) -> str:
        """Return a name for a variable, after what it holds."""
        plain = re.sub(r"\W+", "_", name).strip("_") or "x"
        while plain in {*self._known, *self._variables.values(), "args", "module", "torch"}:
            plain += "_"
        return plain

    def stands_for(self, value: torch.Tensor, variable: str) -> None:
        """Write the variable where the tensor occurs from now on."""
        self._variables[id(value)] = variable

    def literal(self, value: Any, what: str) -> str:
        """Write a value as an expression.

        Args:
            value: a tensor, a plain value, a container of such, a function or a class.
            what: how to call it where it can't be written.

        Raises:
            UsageError: it can't be written.
        """
        if isinstance(value, torch.Tensor):
            return self._variables.get(id(value)) or self._tensor(value, what)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if isinstance(value, _PLAIN):
            return _SPELLED.get(type(value), "{!r}").format(value)
        if type(value) in (tuple, list, set, frozenset, dict, torch.Size):
            return self._container(value, what)
        if isinstance(value, functools.partial):
            self.imports["import functools"] = None
            given = [self.literal(one, what) for one in value.args]
            given += [f"{name}={self.literal(one, what)}" for name, one in value.keywords.items()]
            return f"functools.partial({', '.join([self.name_of(value.func), *given])})"
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            return self.name_of(value)
        raise UsageError(
            f"{what} is {_described(value)}, which can't be written into a script; check a "
            "function of tensors, numbers, texts and containers of these, and ask again"
        )

    def name_of(self, thing: Any) -> str:
        """Return an expression for a function or class; a user's is copied into the script.

        Raises:
            UsageError: its source is not there, or it needs something that can't be written.
        """
        thing = getattr(thing, "operation", thing)
        name = getattr(thing, "__name__", "")
        if getattr(builtins, name, None) is thing:
            return name
        for holder in _HOLDERS:
            if getattr(holder, name, None) is thing:
                return f"{_path_of(holder)}.{name}"
        if _is_installed(thing):
            module = thing.__module__
            self.imports[f"import {module}"] = None
            return f"{module}.{thing.__qualname__}"
        if self._known.get(name) is thing:
            return name
        self._define(thing, name)
        return name

    def module(self, module: nn.Module, name: str) -> list[str]:
        """Return the statements that make a module as it is, without its ``__init__``.

        Raises:
            UsageError: something in it can't be written.
        """
        lines: list[str] = []
        self._module(module, name, lines, {})
        return lines

    def _module(self, module: nn.Module, name: str, lines: list[str], made: dict[int, str]) -> None:
        cls = self.name_of(type(module))
        lines += [f"{name} = {cls}.__new__({cls})", f"torch.nn.Module.__init__({name})"]
        made[id(module)] = name
        what = f"{{}} of the module {type(module).__name__}"
        for key, value in vars(module).items():
            if key in _OF_EVERY_MODULE:
                if "hooks" in key and value:
                    raise UsageError(
                        f"{type(module).__name__} has hooks, which can't be written into a script; "
                        "check it without them, and ask again"
                    )
            else:
                text = self.literal(value, what.format(f"attribute `{key}`"))
                lines.append(f"{name}.{key} = {text}")
        lines.append(f"{name}.training = {module.training}")
        for key, parameter in module._parameters.items():  # noqa: SLF001 - None is among them
            known = made.get(id(parameter))
            if parameter is not None and known is None:
                values = self.literal(parameter.detach(), what.format(f"parameter `{key}`"))
                known = f"torch.nn.Parameter({values}, requires_grad={parameter.requires_grad})"
                made[id(parameter)] = f"{name}.{key}"
            lines.append(f"{name}.register_parameter({key!r}, {known})")
        for key, buffer in module._buffers.items():  # noqa: SLF001 - None is among them
            held = "None" if buffer is None else self.literal(buffer, what.format(f"`{key}`"))
            lines.append(f"{name}.register_buffer({key!r}, {held})")
        for key, child in module._modules.items():  # noqa: SLF001 - None is among them
            if child is not None and id(child) not in made:
                self._module(child, f"{name}_{key}", lines, made)
            text = "None" if child is None else made[id(child)]
            lines.append(f"{name}.add_module({key!r}, {text})")

    def _tensor(self, value: torch.Tensor, what: str) -> str:
        if type(value) not in (torch.Tensor, nn.Parameter) or value.layout is not torch.strided:
            raise UsageError(
                f"{what} is {_described(value)} of layout {value.layout}, which can't be written "
                "into a script; check a function of plain tensors, and ask again"
            )
        self._entries += value.numel()
        if self._entries > MOST_ENTRIES:
            raise UsageError(
                f"the script would hold more than {MOST_ENTRIES} numbers, however small its "
                f"inputs were made ({what} alone has {value.numel()}); check a smaller input or "
                "model, or the function that is wrong by itself, and ask again"
            )
        known = value.detach().cpu().resolve_conj().resolve_neg()
        text = _nested(known)
        if not known.numel():
            made = f"torch.empty({tuple(known.shape)}, dtype={known.dtype})"
        else:
            made = f"torch.tensor({text}, dtype={known.dtype})"
        if known.numel() and not known.is_contiguous():
            made = _laid_out(made, known)
        return f"{made}.requires_grad_()" if value.requires_grad else made

    def _container(self, value: Any, what: str) -> str:
        if isinstance(value, dict):
            items = [
                f"{self.literal(key, what)}: {self.literal(one, f'{what}[{key!r}]')}"
                for key, one in value.items()
            ]
            return "{" + ", ".join(items) + "}"
        parts = [self.literal(one, f"{what}[{index}]") for index, one in enumerate(value)]
        inner = ", ".join(parts)
        if isinstance(value, tuple):
            text = f"({inner},)" if len(parts) == 1 else f"({inner})"
            return f"torch.Size({text})" if isinstance(value, torch.Size) else text
        return f"[{inner}]" if isinstance(value, list) else f"{type(value).__name__}([{inner}])"

    def _define(self, thing: Any, name: str) -> None:
        if name in self._known:
            raise UsageError(
                f"two things that the script needs are called `{name}`; rename one of them, and "
                "ask again"
            )
        try:
            text = textwrap.dedent(inspect.getsource(thing))
            table = symtable.symtable(_FUTURE + text, name, "exec")
        except (OSError, TypeError, SyntaxError) as error:
            raise UsageError(
                f"the source of `{getattr(thing, '__qualname__', name)}` is not there "
                f"({error}); define it in a file, as a `def` or a `class` of its own, and ask again"
            ) from error
        if not text.startswith(("def ", "class ", "@")):
            raise UsageError(
                f"`{name}` is a lambda or a part of a larger expression, which can't be written "
                "into a script; define it with `def`, and ask again"
            )
        self._known[name] = thing
        namespace = _namespace(thing)
        for used in dict.fromkeys(_globals_of(table)):
            if used in namespace and used not in vars(builtins) and not used.startswith("__"):
                self._bind(used, namespace[used], name)
        self.blocks.append(text.strip("\n"))

    def _bind(self, name: str, value: Any, user: str) -> None:
        """Give a name that a definition uses its value."""
        if name in self._known:
            if self._known[name] is not value:
                raise UsageError(
                    f"`{name}` stands for different things in what the script needs; rename one of "
                    "them, and ask again"
                )
            return
        if isinstance(value, ModuleType):
            self._known[name] = value
            self._import(value, name)
            return
        text = self.literal(value, f"`{name}`, which `{user}` uses,")
        if text != name:
            self._known[name] = value
            self.blocks.append(f"{name} = {text}")

    def _import(self, module: ModuleType, name: str) -> None:
        path = getattr(module, "__file__", None)
        if path is not None and owner_of_file(path) is Owner.USER:
            folder = Path(path).resolve().parents[module.__name__.count(".")]
            self.imports[f"sys.path.insert(0, {str(folder)!r})"] = None
        plain = name == module.__name__
        self.imports[f"import {module.__name__}" + ("" if plain else f" as {name}")] = None


def _namespace(thing: Any) -> dict[str, Any]:
    """Return what the names that a function or class uses stand for."""
    functions = (
        [thing]
        if isinstance(thing, FunctionType)
        else [getattr(one, "__func__", one) for one in vars(thing).values()]
    )
    found: dict[str, Any] = (
        dict(vars(sys.modules[thing.__module__])) if (thing.__module__ in sys.modules) else {}
    )
    for function in functions:
        function = inspect.unwrap(function) if callable(function) else function  # noqa: PLW2901
        if isinstance(function, FunctionType):
            found.update(function.__globals__)
    for function in functions:
        if isinstance(function, FunctionType):
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
            for name, cell in cells:
                try:
                    found[name] = cell.cell_contents
                except ValueError:  # noqa: PERF203 - not filled yet
                    continue
    return found


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that a source takes from around it."""
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or (top and not symbol.is_assigned())):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals_of(child)


def _is_installed(thing: Any) -> bool:
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    if module is None or "<locals>" in thing.__qualname__:
        return False
    return path is None or owner_of_file(path) in {Owner.PACKAGE, Owner.PYTHON}


def _path_of(holder: Any) -> str:
    return "torch.Tensor" if holder is torch.Tensor else str(holder.__name__)


def _described(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def _nested(value: torch.Tensor) -> str:
    text = repr(value.tolist())
    for word in ("nan", "inf"):
        text = text.replace(word, f'float("{word}")')
    return text


def _laid_out(made: str, value: torch.Tensor) -> str:
    """Lay out a tensor in memory as it was: dimensions in another order, or with gaps."""
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    permuted = value.permute(order)
    if permuted.is_contiguous():
        back = [order.index(dim) for dim in range(value.dim())]
        return f"{made}.permute({order}).contiguous().permute({back})"
    if 0 in value.stride():
        one = tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())
        return f"{made}[{one!r}].expand({list(value.shape)})"
    return f"torch.stack(({made}, {made}), -1)[..., 1]"
