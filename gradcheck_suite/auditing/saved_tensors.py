"""Watch every tensor that autograd saves, from the op that saves it to the backward that uses it.

A pair of saved-tensors hooks, any pair, switches off torch's own version check: a real in-place
error would become a silently wrong gradient. The unpack hook therefore makes that check itself
and raises torch's error in torch's words.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from typing import TYPE_CHECKING

import torch

from gradcheck_suite._torch_compat import (
    current_node,
    dispatch_mode_is_active,
    inside_backward,
    saved_as,
    version_of,
    without_dispatch_modes,
    without_torch_function,
)
from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.checksums import fingerprint, same_content
from gradcheck_suite.auditing.events import SavedTensorCorrupted, SavedTensorModified
from gradcheck_suite.auditing.packed import Holder

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["SavedTensors", "operation_of"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_WRITTEN_BY_THEIR_OP = frozenset(
    {
        # The op draws its noise into an argument that it has saved before.
        ("RreluWithNoise", "noise"),
        # The state of cuDNN's dropout generator, which every forward advances.
        ("CudnnRnn", "dropout_state"),
        ("BatchNormWithUpdate", "running_mean"),
        ("BatchNormWithUpdate", "running_var"),
    }
)
_OUTPUT_NAMES = ("result", "output", "out")
_BATCH_NORM_STATISTICS = frozenset({"running_mean", "running_var"})


class SavedTensors:
    """The pair of hooks, and what they counted."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.take_fingerprints = False
        self.want_fingerprints = False
        self.saved = 0
        self.used = 0
        self.fingerprinted = 0
        self.without_fingerprint = 0
        self.hooks = (self._pack_hook(), self._unpack)

    def _pack_hook(self) -> Callable[[Tensor], Holder]:
        recorder = self._recorder
        tick = recorder.tick
        generations = recorder.generations
        new = Holder.__new__
        weak_reference = weakref.ref

        def pack(tensor: Tensor) -> Holder:
            holder = new(Holder)
            if tensor.is_leaf:
                holder.tensor = tensor
                holder.original = None
                holder.producer = None
            else:
                holder.tensor = _alias_of(tensor) if dispatch_mode_is_active() else tensor.detach()
                holder.original = weak_reference(tensor)
                holder.producer = type(tensor.grad_fn)
                holder.output_number = tensor.output_nr
            holder.version = version_of(tensor)
            holder.sequence = tick()
            holder.birth = generations.birth
            holder.site = call_site()
            holder.fingerprint = None
            self.saved += 1
            recorder.inside_step = False
            if type(tensor) in _PLAIN:
                try:
                    holder.address = tensor.data_ptr()
                except RuntimeError:  # no storage of its own: wrapped by a transform
                    holder.address = _UNKNOWN
            else:
                holder.address = _UNKNOWN
            if self.take_fingerprints:
                self._take_fingerprint(holder)
            return holder

        return pack

    def _take_fingerprint(self, holder: Holder) -> None:
        if holder.address == _UNKNOWN or not _may_read(holder.tensor):
            self.without_fingerprint += 1
            return
        with without_torch_function(), contextlib.suppress(RuntimeError):
            # What can't be read is not covered: zero tensors, or no memory left for the sums.
            holder.fingerprint = fingerprint(holder.tensor)
        if holder.fingerprint is None:
            self.without_fingerprint += 1
        else:
            self.fingerprinted += 1

    def _unpack(self, holder: Holder) -> Tensor:
        tensor = holder.tensor
        self.used += 1
        version = version_of(tensor)
        if version != holder.version:
            raise self._modified(holder, version)
        if holder.address != _UNKNOWN:
            if tensor.data_ptr() != holder.address:
                self._given_other_memory(holder)
            elif holder.fingerprint is not None:
                self._compare(holder)
        return tensor

    def _modified(self, holder: Holder, version: int) -> RuntimeError:
        node = current_node() if inside_backward() else None
        if node is not None:
            self._recorder.emit(
                SavedTensorModified(
                    holder=holder,
                    step=self._recorder.step,
                    node=node.name(),
                    version=version,
                    site=call_site(),
                )
            )
        try:
            return RuntimeError(_version_error(holder, version, _producer_of(holder, node)))
        except RuntimeError as error:
            # A view that may not be modified in place: torch's own words on that.
            return error

    def _given_other_memory(self, holder: Holder) -> None:
        if holder.fingerprint is None:
            # Other memory with the same contents is harmless (sharded parameters do that): the
            # next step will tell.
            self.want_fingerprints = True
        else:
            self._compare(holder, change="memory")

    def _compare(self, holder: Holder, change: str = "content") -> None:
        tensor = holder.tensor
        if holder.fingerprint is None or not inside_backward() or not _may_read(tensor):
            return
        unchanged = True
        with without_torch_function(), contextlib.suppress(RuntimeError):
            unchanged = same_content(holder.fingerprint, tensor)
        if unchanged:
            return
        node = current_node()
        if node is not None and _is_rewritten_by_its_op(node, holder):
            return
        self._recorder.emit(
            SavedTensorCorrupted(
                holder=holder,
                step=self._recorder.step,
                node=None if node is None else node.name(),
                change="memory" if change == "memory" else "content",
                site=call_site(),
            )
        )


_UNKNOWN = -1


def _alias_of(tensor: Tensor) -> Tensor:
    """Alias ``tensor`` out of sight of the user's dispatch modes."""
    with without_dispatch_modes():
        return tensor.detach()


def _may_read(tensor: Tensor) -> bool:
    """Return whether reading the contents of ``tensor`` now is possible and goes unnoticed.

    Operators that run under a dispatch mode of the user's would show up there, and those that run
    while a CUDA graph is captured would become part of it.
    """
    if dispatch_mode_is_active():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _is_rewritten_by_its_op(node: Node, holder: Holder) -> bool:
    name = saved_as(node, holder)
    if (operation_of(node.name()), name) in _WRITTEN_BY_THEIR_OP:
        return True
    # In training mode the op itself rewrites the running statistics that it saves, without moving
    # their version counter; backward does not read them then. In evaluation mode it does.
    return name in _BATCH_NORM_STATISTICS and bool(
        getattr(node, "_saved_training", getattr(node, "_saved_train", False))
    )


def _producer_of(holder: Holder, node: Node | None) -> str | None:
    """Return the op that torch's message names: the one whose output the tensor is by now."""
    if holder.original is None or holder.producer is None:
        return None
    name = None if node is None else saved_as(node, holder)
    original = holder.original()
    if node is not None and name is not None and name.startswith(_OUTPUT_NAMES):
        producer = node.name()
    elif original is not None:
        producer = "" if original.grad_fn is None else original.grad_fn.name()
    elif holder.producer.__name__ in _VIEWS:
        # torch rebuilds the node of a view whose base has been written to.
        producer = "AsStridedBackward0"
    else:
        producer = holder.producer.__name__
    return operation_of(producer)


_VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        "AsStrided",
        "Diagonal",
        "Expand",
        "Permute",
        "Select",
        "Slice",
        "Squeeze",
        "Squeeze_",
        "T",
        "Transpose",
        "Unfold",
        "Unsqueeze",
        "View",
    )
)


def operation_of(node_name: str) -> str:
    """Return the operation that a backward node belongs to.

    >>> operation_of("MulBackward0"), operation_of("MyFunctionBackward")
    ('Mul', 'MyFunction')
    """
    return re.sub(r"Backward\d*$", "", node_name)


def _version_error(holder: Holder, version: int, producer: str | None) -> str:
    """Word the error as torch 2.13 does."""
    tensor = holder.tensor
    origin = (
        f", which is output {holder.output_number} of {producer}," if producer is not None else ""
    )
    if torch.is_anomaly_enabled():
        hint = (
            "the backtrace further above shows the operation that failed to compute its gradient. "
            "The variable in question was changed in there or anywhere later. Good luck!"
        )
    else:
        hint = (
            "enable anomaly detection to find the operation that failed to compute its gradient, "
            "with torch.autograd.set_detect_anomaly(True, check_nan=False)."
        )
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{_type_of(tensor)} {list(tensor.shape)}]{origin} is at version {version}; "
        f"expected version {holder.version} instead. Hint: {hint}"
    )


def _type_of(tensor: Tensor) -> str:
    kind = tensor.type()
    if kind.rpartition(".")[2] in _LEGACY_TYPES:
        return kind
    name = kind.rpartition(".")[2].removesuffix("Tensor")
    return f"{tensor.device.type.upper()}{name}Type"


_LEGACY_TYPES = frozenset(
    f"{name}Tensor"
    for name in ("Float", "Double", "Half", "Byte", "Char", "Short", "Int", "Long", "Bool")
)
