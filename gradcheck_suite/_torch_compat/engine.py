"""The engine that runs backward, and the hooks that it and forward call."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import contextlib
import sys
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from torch import Tensor
    from torch.autograd.graph import Node

__all__ = [
    "Hooks",
    "add_post_hooks",
    "backward_is_compiled",
    "current_node",
    "engine_entry_points",
    "hooks_registered",
    "inside_backward",
    "keeps_and_makes_graph",
    "push_saved_tensors_hooks",
    "remove_saved_tensors_hooks",
    "saved_tensors_hooks_are_disabled",
    "step_aside_from_backward",
    "top_saved_tensors_hooks",
]


def inside_backward() -> bool:
    """Return whether this thread is running part of a backward (torch 2.13)."""
    return _graph_task_id() != _NO_GRAPH_TASK


_NO_GRAPH_TASK = -1
_graph_task_id: Callable[[], int] = getattr(
    torch._C, "_current_graph_task_id", lambda: _NO_GRAPH_TASK
)


def backward_is_compiled() -> bool:
    """Return whether compiled autograd would compile a backward that begins now, hooks included.

    Torch notes it in ``torch._dynamo.compiled_autograd`` (torch 2.6 to 2.13).
    """
    known = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(known, "compiled_autograd_enabled", False))


def current_node() -> Node | None:
    """Return the autograd node that backward is running on this thread, or None (torch 2.13)."""
    current: Callable[[], Node | None] | None = getattr(torch._C, "_current_autograd_node", None)
    return current() if current is not None else None


def engine_entry_points() -> tuple[tuple[ModuleType, str], ...]:
    """Return where every backward and autograd.grad passes through Python (torch 2.13).

    ``torch.compiler`` replaces the same two names when it traces a backward. Where they are
    missing, the public functions stand in; calls through names imported earlier then go unseen.
    """
    name = "_engine_run_backward"
    if hasattr(torch.autograd, name) and hasattr(torch.autograd.graph, name):
        return (torch.autograd, name), (torch.autograd.graph, name)
    return (torch.autograd, "backward"), (torch.autograd, "grad")


def keeps_and_makes_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, bool]:
    """Read retain_graph and create_graph from what an entry point is given after the outputs."""
    if args[2:]:
        retain, create = args[1:3]
    else:
        retain = args[1] if args[1:] else kwargs.get("keep_graph", kwargs.get("retain_graph"))
        create = kwargs.get("create_graph", False)
    return bool(retain) or bool(create), bool(create)


def add_post_hooks(
    hooks: Iterable[tuple[Node, Callable[[Any, Any], None]]],
) -> Callable[[], None]:
    """Register a hook on each of many nodes as ``Node.register_hook`` does (torch 2.13).

    That takes 2.5 microseconds a node, most of them for a handle; this takes half. Hooks that other
    threads register meanwhile get their handles.

    Returns:
        A function that removes them all.
    """
    mixin = getattr(torch.autograd.function, "_HookMixin", None)
    original = getattr(mixin, "_register_hook", None)
    if mixin is None or original is None:
        handles = contextlib.ExitStack()
        for node, hook in hooks:
            handles.callback(node.register_hook(hook).remove)
        return handles.close
    thread = threading.get_ident()
    added: list[dict[object, Any]] = []
    key = object()

    def register(known: dict[object, Any] | None, hook: Any) -> tuple[Any, Any]:
        if threading.get_ident() != thread:
            return cast("tuple[Any, Any]", original(known, hook))
        table = OrderedDict() if known is None else known
        table[key] = hook
        added.append(table)
        return table, None

    mixin._register_hook = staticmethod(register)
    try:
        for node, hook in hooks:
            node.register_hook(hook)
    finally:
        mixin._register_hook = staticmethod(original)

    def remove() -> None:
        for table in added:
            table.pop(key, None)

    return remove


def hooks_registered() -> int | None:
    """Return how many handles of hooks have been made so far, of whatever kind (torch 2.13).

    Hooks on tensors, nodes and modules that Python code registers all have one. None where torch
    does not count them.
    """
    return getattr(torch.utils.hooks.RemovableHandle, "next_id", None)


Hooks: TypeAlias = "tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]"


class _Stack(threading.local):
    """The saved-tensors hooks of this thread, innermost last."""

    def __init__(self) -> None:
        self.pairs: list[Hooks] = []


def _keep_the_stack(autograd: Any) -> None:
    """Let torch tell which saved-tensors hooks are innermost, where it does not (torch 2.6, 2.7).

    Everybody pushes and pops through the two names that are replaced here, as long as the process
    lives: what lies on the stack can't be asked for later. Hooks that were pushed before are not
    known.
    """
    push, pop = (
        autograd._push_saved_tensors_default_hooks,
        autograd._pop_saved_tensors_default_hooks,
    )
    stack = _Stack()

    def pushing(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        push(pack, unpack)
        stack.pairs.append((pack, unpack))

    def popping() -> None:
        pop()
        if stack.pairs:
            stack.pairs.pop()

    def top(ignore_is_tracing: bool) -> Hooks | None:  # noqa: ARG001 - torch's own signature
        return stack.pairs[-1] if stack.pairs else None

    autograd._push_saved_tensors_default_hooks = pushing
    autograd._pop_saved_tensors_default_hooks = popping
    autograd._top_saved_tensors_default_hooks = top


def saved_tensors_hooks_are_disabled() -> bool:
    """Return whether torch refuses saved-tensors hooks here, as functorch does (torch 2.6)."""
    enabled = getattr(torch._C._autograd, "_saved_tensors_hooks_is_enabled", None)
    return enabled is not None and not enabled()


STACK_IS_KEPT = not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
"""Whether the stack of saved-tensors hooks is kept here, as torch does not tell it (2.6, 2.7)."""

if STACK_IS_KEPT:
    _keep_the_stack(torch._C._autograd)


def push_saved_tensors_hooks(
    pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]
) -> None:
    """Make a pair of hooks this thread's innermost saved-tensors hooks (torch 2.6)."""
    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def top_saved_tensors_hooks() -> Hooks | None:
    """Return this thread's innermost saved-tensors hooks, or None (torch 2.8)."""
    top: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top


def remove_saved_tensors_hooks(hooks: Hooks) -> bool:
    """Take ``hooks`` off this thread's stack, wherever they lie in it (torch 2.13).

    Returns:
        Whether they were there. Hooks above them stay, in their order.
    """
    above: list[Hooks] = []
    found = False
    while (top := top_saved_tensors_hooks()) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if top[0] is hooks[0]:
            found = True
            break
        above.append(top)
    for pair in reversed(above):
        push_saved_tensors_hooks(*pair)
    return found


def step_aside_from_backward(hooks: Hooks) -> bool:
    """Take ``hooks`` off this thread's stack for a backward, if they are the innermost.

    The engine copies the whole stack for every node that it runs, and holds Python's lock to do so:
    that makes up a seventh of the backward of a small transformer (torch 2.13). It runs nodes with
    gradients disabled, so that nothing is saved; what a backward of Python's own saves under
    ``torch.enable_grad`` meanwhile, torch itself watches.

    Returns:
        Whether they were taken off, and have to be put back when backward is done.
    """
    autograd = torch._C._autograd
    top: Hooks | None = autograd._top_saved_tensors_default_hooks(True)
    if top is None or top[0] is not hooks[0]:
        return False
    autograd._pop_saved_tensors_default_hooks()
    return True
