"""Make mutants of correct Functions and prove that they are wrong."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import linecache
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tests.verification.mutants.originals import ORIGINALS, Arguments, Draw, Original

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

for _room in ("elementwise", "reductions", "products", "indexing", "habits"):
    importlib.import_module(f"tests.verification.mutants.{_room}")

# Gradients of one formula agree to some 1e-12 or 1e-5; a mutant below this is no mistake.
_DIFFERS = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 1e-3}


@dataclass(frozen=True)
class Mutant:
    """A Function that was right before one edit.

    ``kind`` is what the diagnosis should say of it, where that can be said. ``order`` is 2 where
    only the gradient of the gradient is wrong.
    """

    name: str
    function: type[torch.autograd.Function]
    original: Original
    order: int = 1
    kind: str | None = None

    @property
    def target(self) -> Any:
        return self.original.target(self.function)

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> Arguments:
        return self.original.inputs(Draw(seed, dtype))


def source_of(original: Original, old: str = "", new: str = "") -> str:
    """Return the class statement without its decorators, after one replacement in its text.

    Raises:
        ValueError: ``old`` is not there, or more than once.
    """
    text = textwrap.dedent(inspect.getsource(original.function))
    if old and text.count(old) != 1:
        raise ValueError(
            f"{original.function.__name__} holds {old!r} {text.count(old)} times, expected 1"
        )
    tree = ast.parse(text.replace(old, new) if old else text)
    statement = tree.body[0]
    assert isinstance(statement, ast.ClassDef)
    statement.decorator_list = []
    return ast.unparse(tree)


def compile_function(original: Original, source: str, name: str) -> type[torch.autograd.Function]:
    """Run a class statement where the original's stood, with lines that can be shown."""
    file = f"{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(vars(inspect.getmodule(original.function)))
    exec(compile(source, file, "exec"), namespace)
    function: type[torch.autograd.Function] = namespace[original.function.__name__]
    return function


class _Context:
    """Stands in for ctx where forward is run as plain, recorded torch code."""

    needs_input_grad = (True,) * 9

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...

    def mark_dirty(self, *tensors: torch.Tensor) -> None: ...

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


def reference(original: Original) -> Callable[..., Any]:
    """Return the original's forward, to be differentiated by autograd."""

    def forward(*arguments: Any) -> Any:
        return original.function.forward(_Context(), *arguments)

    return forward if original.call is None else original.call(forward)


def order_that_is_wrong(original: Original, function: type[torch.autograd.Function]) -> int | None:
    """Compare a Function with autograd through the original's forward.

    Returns:
        1 or 2 for the first order at which they differ at the inputs drawn with some seed; None
        where they never do, or where the Function fails at once.
    """
    target = _callable(original, function)
    for order in (1, 2) if _is_right_at_order_2(original) else (1,):
        for seed in (0, 1, 2):
            try:
                ours = _gradients(target, original, seed, order)
            except Exception:  # noqa: BLE001 - an edit can raise anything
                if order == 1:
                    return None  # it raises in every training step: nobody needs a checker
                break
            if _differ(ours, _gradients(reference(original), original, seed, order)):
                return order
    return None


@functools.cache
def _is_right_at_order_2(original: Original) -> bool:
    """Say whether the original can be differentiated twice; once_differentiable ones can't."""
    ours = _gradients(_callable(original, original.function), original, 0, 2)
    return bool(ours) and not _differ(ours, _gradients(reference(original), original, 0, 2))


def _callable(original: Original, function: type[torch.autograd.Function]) -> Callable[..., Any]:
    target: Callable[..., Any] = original.target(function)
    return getattr(target, "apply", target)


def _gradients(
    target: Callable[..., Any], original: Original, seed: int, order: int
) -> list[torch.Tensor]:
    arguments = original.inputs(Draw(seed))
    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    torch.manual_seed(seed)
    produced = target(*arguments)
    outputs = produced if isinstance(produced, tuple) else (produced,)
    draw = torch.Generator().manual_seed(100 + seed)
    cotangents = [
        torch.randn(o.shape, generator=draw, dtype=o.dtype).requires_grad_() for o in outputs
    ]
    torch.manual_seed(1000 + seed)
    found = torch.autograd.grad(
        outputs, leaves, cotangents, create_graph=order > 1, materialize_grads=True
    )
    if order == 1:
        return [part.detach() for part in found]
    if not any(part.requires_grad for part in found):
        return []
    weights = [torch.randn(part.shape, generator=draw, dtype=part.dtype) for part in found]
    total = sum((part * weight).sum() for part, weight in zip(found, weights, strict=True))
    if total.is_complex():
        total = total.real
    second = torch.autograd.grad(
        total, [*leaves, *cotangents], allow_unused=True, materialize_grads=True
    )
    return [part.detach() for part in second]


def _differ(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    if not ours:
        return False
    for one, two in zip(ours, theirs, strict=True):
        size = float(two.abs().max()) if two.numel() else 0.0
        if not bool(torch.isfinite(one).all()):
            return True
        if float((one - two).abs().max()) > _DIFFERS[two.dtype] * (size or 1.0):
            return True
    return False


def correct_targets() -> Iterator[tuple[str, Any, Original]]:
    """Yield every original by name."""
    for name, found in ORIGINALS.items():
        yield name, found.target(found.function), found
