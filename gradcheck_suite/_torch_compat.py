"""Every private name of torch that gradcheck-suite touches, one small function each.

Each function has a test, says which torch it was read in, and falls back honestly where the name
is missing.
"""

# ruff: noqa: SLF001 - private names are what this module is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import sys
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
import torch.nn.utils.stateless
import torch.utils._python_dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from torch import Tensor
    from torch.autograd.graph import Node


def node_sequence_number(node: Node) -> int | None:
    """Return when the forward pass made this node, or None for a leaf (torch 2.13).

    Numbers rise with every op that a thread records; backward runs high numbers first. Leaves
    carry the greatest unsigned 64-bit number, which says nothing about the forward pass.
    """
    number = getattr(node, "_sequence_nr", None)
    if number is None:
        return None
    value: int = number()
    return None if value == _NO_SEQUENCE_NUMBER else value


_NO_SEQUENCE_NUMBER = 2**64 - 1

next_sequence_number: Callable[[], int] | None = getattr(
    torch._C._autograd, "_get_sequence_nr", None
)
"""Return the sequence number that the next node made on this thread will get (torch 2.13).

None where torch does not tell. Not a function of Python's own, because it is called twice for each
module and once for each saved tensor.
"""


def node_output_types(
    node: Node,
) -> tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]:
    """Return shape and dtype of each forward output of this node (torch 2.13).

    torch keeps them to check the incoming gradients with. An entry is None where it cannot be
    told (nested tensors); the tuple is empty where torch does not expose it.
    """
    return tuple(_type_of(metadata) for metadata in getattr(node, "_input_metadata", ()))


def _type_of(metadata: Any) -> tuple[tuple[int, ...], torch.dtype] | None:
    try:
        return tuple(int(size) for size in metadata.shape), metadata.dtype
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


def saved_attribute_names(node_type: type) -> tuple[str, ...]:
    """Return the attributes under which nodes of this class give their saved tensors (torch 2.13).

    They are sorted, and include those that hold no tensor in a particular node.
    """
    names = _SAVED_NAMES.get(node_type)
    if names is None:
        names = tuple(name for name in sorted(dir(node_type)) if name.startswith(_RAW_SAVED))
        _SAVED_NAMES[node_type] = names
    return names


# Weakly: a custom Function's class of nodes may be one of a function that runs often.
_SAVED_NAMES: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


_RAW_SAVED = "_raw_saved_"


@dataclass(frozen=True, slots=True)
class RawSaved:
    """What one saved-tensor attribute of a node holds, read without unpacking.

    ``tensors`` has one entry for each saved tensor: the tensor itself, None where the op saved
    nothing in this place, or ``HOOKED`` where saved-tensor hooks hold it in a form of their own.
    ``freed`` says that a backward has released them. ``modified`` are the places of tensors that
    were overwritten since, so that torch refuses to hand them out.
    """

    name: str
    tensors: tuple[torch.Tensor | HookedType | None, ...]
    freed: bool
    modified: tuple[int, ...] = ()


class HookedType(Enum):
    """Stand for a saved tensor that saved-tensor hooks hold."""

    HOOKED = "hooked"


HOOKED = HookedType.HOOKED


def read_saved(
    node: Node,
    attribute: str,
    unwrap: Callable[[object], tuple[torch.Tensor, bool] | None] | None = None,
) -> RawSaved:
    """Read one of ``saved_attribute_names`` without running anybody's unpack hook (torch 2.13).

    ``SavedTensor.data`` is None both for a tensor that backward has freed and for a place that
    the op left empty. Unpacking tells them apart, and runs no hook, as there is none.

    Args:
        node: the node to read.
        attribute: one of its ``saved_attribute_names``.
        unwrap: tells, from what a pack hook returned, the tensor and whether it was overwritten
            since; None where the hook is a stranger's.
    """
    name = attribute.removeprefix(_RAW_SAVED)
    try:
        raw = getattr(node, attribute)
    except RuntimeError:
        return RawSaved(name=name, tensors=(), freed=True)
    tensors: list[torch.Tensor | HookedType | None] = []
    modified: list[int] = []
    freed = False
    for place, saved in enumerate(raw if isinstance(raw, (list, tuple)) else (raw,)):
        if saved is None:
            tensors.append(None)
        elif getattr(saved, "unpack_hook", None) is not None:
            known = unwrap(saved.data) if unwrap is not None else None
            tensors.append(HOOKED if known is None else known[0])
            if known is not None and known[1]:
                modified.append(place)
        elif saved.data is not None:
            tensors.append(saved.data)
            if _was_modified(saved, node, name):
                modified.append(place)
        else:
            freed = freed or _unpacking_fails(saved)
            tensors.append(None)
    return RawSaved(name=name, tensors=tuple(tensors), freed=freed, modified=tuple(modified))


def _was_modified(saved: Any, node: Node, name: str) -> bool:
    """Say whether torch refuses to unpack, its version counter having moved since.

    A saved output can be unpacked only through its node.
    """
    if saved.data.is_inference():
        return False
    try:
        saved.unpack()
    except RuntimeError as error:
        if _MODIFIED in str(error):
            return True
        try:
            getattr(node, f"_saved_{name}", None)
        except RuntimeError as refused:
            return _MODIFIED in str(refused)
    return False


_MODIFIED = "modified by an inplace operation"


def node_metadata(node: Node) -> dict[str, Any]:
    """Return the dict that a node carries for Python code, made when first asked for.

    The attribute is public; torch 2.13 annotates it as a method, which it is not.
    """
    return node.metadata  # type: ignore[return-value]  # as said above


def _unpacking_fails(saved: Any) -> bool:
    try:
        saved.unpack()
    except RuntimeError:
        return True
    return False


def saved_attributes(node: Node) -> tuple[tuple[str, str], ...]:
    """Return names and values of what a node keeps apart from tensors (torch 2.13).

    These are the arguments that the derivative needs: dimensions, sizes, flags. What can't be
    read, as after backward, is left out.
    """
    found: list[tuple[str, str]] = []
    for attribute in dir(node):
        name = attribute.removeprefix("_saved_")
        if name == attribute or f"{_RAW_SAVED}{name}" in dir(type(node)):
            continue
        try:
            found.append((name, str(getattr(node, attribute))))
        except RuntimeError:
            continue
    return tuple(found)


def custom_function_class(node: Node) -> type | None:
    """Return the autograd.Function subclass whose apply made this node, or None (torch 2.13)."""
    return getattr(type(node), "_forward_cls", None)


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return a number that is the same for tensors that share memory, while they live (torch 2.13).

    Where the private address of the storage object is missing, the address of the data stands
    in. None for tensors without a storage of their own: sparse tensors and wrapper subclasses.
    """
    return storage_key_and_bytes(tensor)[0]


def storage_key_and_bytes(tensor: Tensor) -> tuple[int, int] | tuple[None, None]:
    """Return the number that :func:`storage_key` gives, and how many bytes the storage has."""
    try:
        storage = tensor.untyped_storage()
        key = getattr(storage, "_cdata", None) or storage.data_ptr()
        return (key, storage.nbytes()) if key else (None, None)
    except (NotImplementedError, RuntimeError):
        return None, None


version_of: Callable[[Tensor], int] = operator.attrgetter("_version")
"""Return the version counter of a tensor, which in-place operations move (torch 2.13).

Raises RuntimeError for a tensor made under ``torch.inference_mode``, which keeps no counter. Not a
function of Python's own, because it is called twice for each saved tensor.
"""

is_view: Callable[[Tensor], bool] = operator.methodcaller("_is_view")
"""Return whether autograd knows this tensor as a view of another (torch 2.13)."""


def sparse_coo_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return indices and values of a sparse COO tensor as they are stored (torch 2.13).

    The public names refuse a tensor that is not coalesced; without the private ones such a tensor
    is coalesced.
    """
    if tensor.is_coalesced() or not hasattr(tensor, "_indices"):
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    return tensor._indices(), tensor._values()


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Return whether anybody registered a hook on the gradient of this tensor (torch 2.13).

    False where torch can't tell.
    """
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return any(getattr(tensor, name, None) for name in names)


def has_backward_hooks(module: torch.nn.Module) -> bool:
    """Return whether anybody registered a backward hook or pre-hook on this module (torch 2.13).

    False where torch can't tell.
    """
    return any(getattr(module, name, None) for name in ("_backward_hooks", "_backward_pre_hooks"))


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether ``torch.compile`` or ``Module.compile`` made or changed this module (2.13).

    False where torch can't tell.
    """
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or "_orig_mod" in getattr(module, "_modules", ())


def power_iterations(module: torch.nn.Module) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return each parameter that spectral norm divides by an estimate of its norm (torch 2.13).

    Only where each forward iterates that estimate, as in training mode. With each parameter come
    its matrix and the left singular vector by now. Empty where torch can't tell.
    """
    found = []
    hook: Any
    for part in module.modules():
        parametrized = getattr(part, "parametrizations", None)
        for parametrization in parametrized.values() if parametrized is not None else ():
            norm = parametrization[0]
            if type(norm).__name__ == "_SpectralNorm" and norm.training and hasattr(norm, "_u"):
                weight = parametrization.original
                found.append((weight, norm._reshape_weight_to_matrix(weight.detach()), norm._u))
        for hook in part._forward_pre_hooks.values() if part.training else ():
            if type(hook).__name__ == "SpectralNorm" and hasattr(part, f"{hook.name}_u"):
                weight = getattr(part, f"{hook.name}_orig")
                vector = getattr(part, f"{hook.name}_u")
                found.append((weight, hook.reshape_weight_to_matrix(weight.detach()), vector))
    return found


def inside_backward() -> bool:
    """Return whether this thread is running part of a backward (torch 2.13)."""
    return _graph_task_id() != _NO_GRAPH_TASK


_NO_GRAPH_TASK = -1
_graph_task_id: Callable[[], int] = getattr(
    torch._C, "_current_graph_task_id", lambda: _NO_GRAPH_TASK
)


def current_node() -> Node | None:
    """Return the autograd node that backward is running on this thread, or None (torch 2.13)."""
    current: Callable[[], Node | None] | None = getattr(torch._C, "_current_autograd_node", None)
    return current() if current is not None else None


def saved_as(node: Node, packed: object) -> str | None:
    """Return the name under which ``node`` saved what a pack hook returned (torch 2.13).

    Returns:
        The name in torch's derivative formula: ``"self"``, ``"result"``, ``"running_mean"``;
        ``"tensors"`` for a custom Function; None where it isn't found.
    """
    for name in saved_attribute_names(type(node)):
        try:
            value = getattr(node, name)
        except RuntimeError:  # already freed
            continue
        for saved in value if isinstance(value, (tuple, list)) else (value,):
            if getattr(saved, "data", None) is packed:
                return name.removeprefix(_RAW_SAVED)
    return None


def saves_under(node: Node, name: str, packed: object) -> bool:
    """Return whether ``node`` saved what a pack hook returned under this name (torch 2.13)."""
    try:
        return getattr(getattr(node, _RAW_SAVED + name, None), "data", None) is packed
    except RuntimeError:  # already freed
        return False


def saved_input_edge(node: Node, name: str | None, tensor: Tensor) -> tuple[Node, int] | None:
    """Return the node and output number that the input saved under ``name`` came from (torch 2.13).

    The edges of a node are its inputs in the order of its arguments; those whose shape and type
    are the tensor's own are looked at.

    Returns:
        None where no edge or several fit and the name does not tell.
    """
    fitting = []
    for place, (maker, number) in enumerate(node.next_functions):
        if maker is None or not maker.next_functions:
            continue
        kinds = node_output_types(maker)
        kind = kinds[number] if number < len(kinds) else None
        if kind is None or kind == (tuple(tensor.shape), tensor.dtype):
            fitting.append((place, maker, number))
    if len({(maker, number) for _, maker, number in fitting}) > 1:
        wanted = _ARGUMENT_PLACES.get(name or "")
        fitting = [found for found in fitting if found[0] == wanted]
    return (fitting[0][1], fitting[0][2]) if fitting else None


_ARGUMENT_PLACES = {"self": 0, "input": 0, "other": 1, "exponent": 1, "weight": 1}
"""The edge of an argument, where it is the same for every op that saves one of this name."""


def engine_entry_points() -> tuple[tuple[ModuleType, str], ...]:
    """Return where every backward and autograd.grad passes through Python (torch 2.13).

    ``torch.compiler`` replaces the same two names when it traces a backward. Where they are
    missing, the public functions stand in; calls through names imported earlier then go unseen.
    """
    name = "_engine_run_backward"
    if hasattr(torch.autograd, name) and hasattr(torch.autograd.graph, name):
        return (torch.autograd, name), (torch.autograd.graph, name)
    return (torch.autograd, "backward"), (torch.autograd, "grad")


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


def keeps_its_size(node: Node) -> bool:
    """Return whether ``expand``, which made this node, changed no size (torch 2.13).

    False where torch can't tell.
    """
    before = getattr(node, "_saved_self_sym_sizes", None)
    outputs: Sequence[Any] = getattr(node, "_input_metadata", ())
    return len(outputs) == 1 and before is not None and tuple(outputs[0].shape) == tuple(before)


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of dense tensors of one dtype and device, one after another (torch 2.13).

    A third of the time of ``torch.cat`` of ``reshape(-1)`` of each, which is the fallback.
    """
    flatten = getattr(torch._utils, "_flatten_dense_tensors", None)
    if flatten is None:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
    return cast("Tensor", flatten(tensors))


def optimizer_was_made() -> bool:
    """Return whether this process has ever made an optimizer; True where that can't be told.

    Torch marks the ``step`` of a class, as ``hooked``, when the first optimizer of it is made
    (torch 2.13, ``Optimizer._patch_step_function``).
    """
    if not hasattr(torch.optim.Optimizer, "_patch_step_function"):
        return True
    waiting: list[type] = [torch.optim.Optimizer]
    while waiting:
        kind = waiting.pop()
        if getattr(getattr(kind, "step", None), "hooked", False):
            return True
        waiting.extend(type.__subclasses__(kind))
    return False


def clipping_internals() -> tuple[str, str | None]:
    """Return names in ``torch.nn.utils.clip_grad`` that its functions look up (torch 2.13).

    Returns:
        The function through which ``clip_grad_norm_`` scales gradients, and the one with which
        ``clip_grad_value_`` sorts them; the public name, and None, where there are no such.
    """
    module = sys.modules["torch.nn.utils.clip_grad"]
    by_norm, grouping = "_clip_grads_with_norm_", "_group_tensors_by_device_and_dtype"
    return (
        by_norm if hasattr(module, by_norm) else "clip_grad_norm_",
        grouping if hasattr(module, grouping) else None,
    )


Hooks: TypeAlias = "tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]"


push_saved_tensors_hooks: Callable[[Callable[[Tensor], Any], Callable[[Any], Tensor]], None] = (
    torch._C._autograd._push_saved_tensors_default_hooks
)
"""Make a pair of hooks this thread's innermost saved-tensors hooks (torch 2.13)."""


def top_saved_tensors_hooks() -> Hooks | None:
    """Return this thread's innermost saved-tensors hooks, or None (torch 2.13)."""
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


def saved_tensors_hooks_are_disabled() -> bool:
    """Return whether torch refuses saved-tensors hooks here, as functorch does (torch 2.13)."""
    enabled: Callable[[], bool] = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]  # not in the stubs
    return not enabled()


def bound_method_maker(function: Callable[..., Any]) -> object:
    """Return a class attribute that binds ``function`` to instances without running Python code.

    CPython's C interface has had ``PyInstanceMethod_New`` since 3.0. Where it is missing, the
    function itself is returned, which must bind itself.
    """
    make = getattr(getattr(ctypes, "pythonapi", None), "PyInstanceMethod_New", None)
    if make is None:
        return function
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.py_object,)
    bound: object = make(function)
    return bound


@functools.cache
def in_place_functions() -> tuple[tuple[Any, str], ...]:
    """Return the owner and name of each function that writes into its first argument (torch 2.13).

    These are the methods of ``torch.Tensor`` with a trailing underscore, the augmented and
    indexed assignments, and the functions behind ``inplace=True`` and ``torch._foreach_*_``.
    """
    found: list[tuple[Any, str]] = [(torch.Tensor, name) for name in _AUGMENTED]
    found += [(torch.Tensor, name) for name in dir(torch.Tensor) if _writes(name)]
    found += [(torch, name) for name in dir(torch) if _writes(name)]
    found += [
        (torch, name) for name in dir(torch) if name.startswith("_foreach_") and name.endswith("_")
    ]
    activations = sys.modules["torch._C._nn"]
    found += [(activations, name) for name in dir(activations) if _writes(name)]
    found += [
        (torch._VF, name)
        for name in ("alpha_dropout_", "dropout_", "feature_alpha_dropout_", "feature_dropout_")
        if hasattr(torch._VF, name)
    ]
    return tuple((owner, name) for owner, name in found if hasattr(owner, name))


_AUGMENTED = (
    "__iadd__",
    "__iand__",
    "__ifloordiv__",
    "__ilshift__",
    "__imod__",
    "__imul__",
    "__ior__",
    "__ipow__",
    "__irshift__",
    "__isub__",
    "__itruediv__",
    "__ixor__",
    "__setitem__",
)
_CHANGE_NO_ELEMENT = frozenset(
    {
        "as_strided_",
        "detach_",
        "is_shared_",
        "rename_",
        "requires_grad_",
        "set_",
        "share_memory_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)


def _writes(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_") and name not in _CHANGE_NO_ELEMENT


def teach_torchscript(replacements: Mapping[Any, Callable[..., Any]]) -> int:
    """Let ``torch.jit.script`` compile each replacement as the operator it maps to (torch 2.13).

    Returns:
        How many of the originals are operators that TorchScript knows.
    """
    table = _torchscript_table()
    known = {
        id(replacement): table[id(original)]
        for replacement, original in replacements.items()
        if id(original) in table
    }
    table.update(known)
    return len(known)


def forget_torchscript(replacements: Iterable[Any]) -> None:
    """Undo ``teach_torchscript``: the table goes by address, which may come to be used again."""
    table = _torchscript_table()
    for replacement in replacements:
        table.pop(id(replacement), None)


def _torchscript_table() -> dict[int, str]:
    # Drawn up on first use from the functions that torch has then: the originals, as this runs
    # before any is replaced.
    table: Callable[[], dict[int, str]] | None = getattr(
        sys.modules.get("torch.jit._builtins"), "_get_builtin_table", None
    )
    return {} if table is None else table()


def without_torch_function() -> AbstractContextManager[None]:
    """Return a context in which the user's torch-function modes and subclasses see nothing."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


function_mode_is_active: Callable[[], int] = getattr(
    torch._C, "_len_torch_function_stack", functools.partial(int, 1)
)
"""Return how many torch-function modes of the user's would see each call (torch 2.13).

1 where torch can't tell, so that they are always kept from seeing ours.
"""


dispatch_mode_is_active: Callable[[], int] = getattr(
    torch._C, "_len_torch_dispatch_stack", functools.partial(int, 0)
)
"""Return how many TorchDispatchModes of the user's would see each operator (torch 2.13).

0 where torch can't tell. Not a function of Python's own, because it is called for each saved
tensor.
"""


def without_dispatch_modes() -> AbstractContextManager[None]:
    """Return a context whose operators no TorchDispatchMode of the user's sees (torch 2.13)."""
    disable: Callable[[], AbstractContextManager[None]] | None = getattr(
        torch.utils._python_dispatch, "_disable_current_modes", None
    )
    return contextlib.nullcontext() if disable is None else disable()


def without_transforms() -> AbstractContextManager[None]:
    """Return a context in which plain tensors stay so under a transform of ``torch.func``.

    By a private guard (torch 2.13); without the name nothing is changed.
    """
    disable: Callable[[], AbstractContextManager[None]] | None = getattr(
        torch._C, "_DisableFuncTorch", None
    )
    return contextlib.nullcontext() if disable is None else disable()


def changing_results(
    change: Callable[[torch._ops.OpOverload, torch.Tensor], torch.Tensor],
) -> AbstractContextManager[None]:
    """Return a context in which operators give what ``change(operator, result)`` makes of it.

    Those of backward too. Only results that are one tensor are handed to ``change``. By a
    TorchDispatchMode (torch 2.13); without the name nothing is changed.
    """

    def changed(operator: torch._ops.OpOverload, _: object, result: object) -> object:
        return change(operator, result) if type(result) is torch.Tensor else result

    return _through(changed)


def noting_operators(
    note: Callable[[torch._ops.OpOverload, Sequence[Any], object], None],
) -> AbstractContextManager[None]:
    """Return a context in which ``note`` is told each operator's call: it, arguments and result.

    Those within custom Functions too. By a TorchDispatchMode (torch 2.13); without the name nothing
    is told.
    """

    def noted(operator: torch._ops.OpOverload, given: Sequence[Any], result: object) -> object:
        note(operator, given, result)
        return result

    return _through(noted)


def _through(
    handle: Callable[[torch._ops.OpOverload, Sequence[Any], object], object],
) -> AbstractContextManager[None]:
    """Return a context in which operators give what ``handle`` makes of call and result."""
    base: type[Any] | None = getattr(torch.utils._python_dispatch, "TorchDispatchMode", None)
    if base is None:
        return contextlib.nullcontext()

    class Through(base):  # type: ignore[misc, valid-type]  # looked up: no static type
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            return handle(func, args, func(*args, **(kwargs or {})))

    mode: AbstractContextManager[None] = Through()
    return mode


def standing_in(
    module: torch.nn.Module, tensors: dict[str, Tensor]
) -> AbstractContextManager[None] | None:
    """Return a context in which a module has other parameters and buffers (torch 2.13).

    ``torch.func.functional_call`` enters it for one call. None where the name is missing.
    """
    reparametrize = getattr(torch.nn.utils.stateless, "_reparametrize_module", None)
    if reparametrize is None:
        return None
    context: AbstractContextManager[None] = reparametrize(module, tensors, tie_weights=True)
    return context


def forget_compiler_tables() -> None:
    """Make ``torch.compile`` look torch's functions up again, if it has done so (torch 2.13).

    It maps function objects to names once; a table drawn up while functions were replaced would
    know the replacements only.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    table = getattr(rules, "get_torch_obj_rule_map", None)
    if table is not None:
        table.cache_clear()


jit_is_tracing: Callable[[], bool] = getattr(torch._C, "_is_tracing", lambda: False)
"""Return whether ``torch.jit.trace`` records what runs now (torch 2.13); without the name, never.

The public ``torch.jit.is_tracing`` does the same, untyped and not exported. Not a function of
Python's own, here and below, because each saved tensor and each backward asks.
"""

transform_is_active: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", lambda: False
)
"""Return whether a transform of ``torch.func`` runs here (torch 2.13); without the name, never."""
