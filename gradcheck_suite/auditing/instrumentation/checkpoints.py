"""Activation checkpoints whose function runs again in backward as it did not in forward.

A checkpoint is right if both runs are the same. Torch sees to its own random numbers, unless it is
told not to; Python's and NumPy's, the mode of modules and weights that a step has changed in
between are the program's business. So is what the function writes to, such as running statistics,
to which it writes in both runs.
"""

from __future__ import annotations

import ctypes
import functools
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import (
    checkpoint_entry_points,
    dispatch_mode_is_active,
    jit_is_tracing,
    version_of,
)
from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.events import RecomputedDifferently
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling
from gradcheck_suite.auditing.user_modes import without_user_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.call_sites import CallSite

__all__ = ["CheckpointSource"]

_FIRST = 64
"""Checkpoints that are looked at from the first on; of later ones those whose number is a power of
two, and the next. A bound on cost: a look takes some ten microseconds."""
_NEXT = 16
"""How many are looked at from each power of two on. A bound on cost, as above."""
_PARAMETERS = 256
"""Parameters, and buffers, of a checkpointed module whose versions are compared. A bound on
cost."""
_SAMPLED = 64
"""Elements of a buffer that show whether it was written. A bound on cost."""


class CheckpointSource(EventSource):
    """Stands around what torch calls to run a checkpointed function, now and in backward."""

    kinds = (RecomputedDifferently,)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._number = 0

    def install(self, patches: Patches) -> None:
        """Replace both of torch's ways, as far as this torch has them."""
        reentrant, generator = checkpoint_entry_points()
        if reentrant is not None:
            patches.replace(*reentrant, staticmethod(self._reentrant(getattr(*reentrant))))
        if generator is not None:
            patches.replace(*generator, self._generating(getattr(*generator)))

    def look(self, function: object) -> _Runs | None:
        """Return what compares the runs of this checkpoint; None if it is not looked at."""
        if not self.state.running or is_compiling() or jit_is_tracing():
            return None
        self._number += 1
        number = self._number
        if number > _FIRST and number - (1 << (number.bit_length() - 1)) >= _NEXT:
            return None
        return None if dispatch_mode_is_active() else _Runs(self, function, call_site())

    def _reentrant(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(function: Callable[..., Any], *args: Any) -> Any:
            runs: _Runs | None = self.acting.look(function)
            if runs is None:
                return original(function, *args)

            def run(*given: Any) -> Any:
                if runs.is_again:
                    return runs.again(function, *given)
                runs.begin()
                result = function(*given)
                runs.end()
                return result

            return original(run, *args)

        return apply

    def _generating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            runs: _Runs | None = self.acting.look(function)
            if runs is None:
                return original(function, *args, **kwargs)

            @functools.wraps(function)
            def run_again(*given: Any, **named: Any) -> Any:
                return runs.again(function, *given, **named)

            return _around(runs, original(run_again, *args, **kwargs))

        return generator


def _around(runs: _Runs, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Look before and after the forward, which runs where torch's generator yields."""
    runs.begin()
    yield from inner
    runs.end()


class _Runs:
    """The runs of one checkpointed function: what the first one met, and what a later one meets."""

    def __init__(self, source: CheckpointSource, function: object, site: CallSite | None) -> None:
        self._source = source
        self._modules = _modules_of(function)
        self._site = site
        self._generators: dict[str, int] = {}
        self._drawn: list[str] = []
        self._training: list[bool] = []
        self._versions: list[tuple[int, int]] = []
        self._buffers: dict[str, list[int]] = {}
        self._written: list[str] = []
        self.is_again = False

    def begin(self) -> None:
        """Note what the first run meets."""
        self._generators = _generators()
        self._training = [part.training for module in self._modules for part in module.modules()]
        self._versions = without_user_modes(_versions, self._modules)
        self._buffers = without_user_modes(_buffers, self._modules)

    def end(self) -> None:
        """Note which random numbers it has drawn."""
        self.is_again = True
        now = _generators()
        self._drawn = [each for each, state in self._generators.items() if now.get(each) != state]
        versions = without_user_modes(_buffers, self._modules)
        self._written = [
            name for name, after in versions.items() if self._buffers.get(name) != after
        ]

    def again(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Run the function in backward, and look at what it meets and what it does."""
        self.compare()
        before = without_user_modes(_contents, self._modules, self._written)
        try:
            return function(*given, **named)
        finally:  # Torch ends the second run by an exception, once it has all that it needs.
            if before and self._source.state.running:
                self._tell_of_writes(before)

    def _tell_of_writes(self, before: dict[str, list[Tensor]]) -> None:
        """Tell of the modules whose buffers are others by what the second run has written."""
        after = without_user_modes(_contents, self._modules, self._written)
        changed = tuple(
            name
            for name, tensors in after.items()
            if name in before and not all(map(torch.equal, before[name], tensors))
        )
        if changed:
            told = RecomputedDifferently((), False, 0, self._site, changed)
            self._source.recorder.bus.emit(told)

    def compare(self) -> None:
        """Tell of what is not as it was, before the function runs again in backward."""
        if not self.is_again or not self._source.state.running:
            return
        now = _generators() if self._drawn else {}
        drawn = [each for each in self._drawn if now.get(each) != self._generators[each]]
        training = [part.training for module in self._modules for part in module.modules()]
        versions = without_user_modes(_versions, self._modules)
        # What lies elsewhere by now was moved or gathered, by whoever shards it.
        stepped = sum(
            before[0] == after[0] and before[1] != after[1]
            for before, after in zip(self._versions, versions, strict=False)
        )
        if drawn or stepped or training != self._training:
            told = RecomputedDifferently(
                tuple(drawn), training != self._training, stepped, self._site
            )
            self._source.recorder.bus.emit(told)


def _generators() -> dict[str, int]:
    """Return a number for the state of each generator of random numbers."""
    states = {"Python's": hash(random.getstate())}
    tensors = {"torch's": torch.default_generator.get_state}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types for it
        tensors["torch's on the GPU"] = torch.cuda.get_rng_state
    for name, state_of in tensors.items():
        try:
            state = state_of()
        except RuntimeError:  # as while a CUDA graph is captured
            continue
        states[name] = hash(ctypes.string_at(state.data_ptr(), state.nbytes))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        kind, keys, *position = numpy.get_state()
        states["NumPy's"] = hash((kind, keys.tobytes(), *position))
    return states


def _modules_of(function: object) -> list[nn.Module]:
    """Return the modules that a checkpointed function is, is a method of, or closes over."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, nn.Module):
        return [function]
    owner = getattr(function, "__self__", None)
    cells = getattr(function, "__closure__", None) or ()
    found = [owner]
    for cell in cells:
        try:
            held = cell.cell_contents
        except ValueError:  # nothing is bound to it yet
            continue
        found.extend(held if isinstance(held, (list, tuple)) else [getattr(held, "__self__", held)])
    return [each for each in found if isinstance(each, nn.Module)]


def _versions(modules: list[nn.Module]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for module in modules:
        for parameter in module.parameters():
            if len(found) >= _PARAMETERS:
                return found
            try:
                found.append((parameter.data_ptr(), version_of(parameter)))
            except (RuntimeError, NotImplementedError):  # it has no memory of its own
                found.append((0, 0))
    return found


def _own_buffers(modules: list[nn.Module]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the buffers of each module that has any, with what it is called."""
    left = _PARAMETERS
    for module in modules:
        for name, part in module.named_modules():
            own = list(part.buffers(recurse=False))[:left]
            left -= len(own)
            if own:
                kind = type(part).__name__
                yield f"`{name}` ({kind})" if name else kind, own


def _buffers(modules: list[nn.Module]) -> dict[str, list[int]]:
    """Return the versions of their buffers."""
    return {name: [version_of(each) for each in own] for name, own in _own_buffers(modules)}


def _contents(modules: list[nn.Module], names: list[str]) -> dict[str, list[Tensor]]:
    """Return some elements of the buffers of those of these names."""
    if not names:
        return {}
    return {
        name: [each.detach().reshape(-1)[:_SAMPLED].clone() for each in own if is_readable(each)]
        for name, own in _own_buffers(modules)
        if name in names
    }
