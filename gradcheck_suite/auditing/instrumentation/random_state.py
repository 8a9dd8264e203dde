"""Seeds and states that torch's own generator is given."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.auditing.call_sites import exact_call_site
from gradcheck_suite.auditing.events import GeneratorSet
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._runtime.patches import Patches

__all__ = ["RandomStateSource"]


class RandomStateSource(EventSource):
    """Replaces ``manual_seed`` and ``set_rng_state``, by which ``fork_rng`` puts a state back."""

    kinds = (GeneratorSet,)

    def install(self, patches: Patches) -> None:
        """Replace the functions, where programs and torch itself find them."""
        for name in ("manual_seed", "set_rng_state"):
            replaced = self._setting(getattr(torch, name), seeds=name == "manual_seed")
            for place in (torch, torch.random):
                patches.replace(place, name, replaced)

    def _setting(self, original: Callable[..., Any], *, seeds: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def set_generator(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            source: RandomStateSource = self.acting
            if source.state.running and not is_compiling():
                given = args[0] if args else next(iter(kwargs.values()), None)
                seed = int(given) if seeds and isinstance(given, (int, float)) else None
                source.recorder.bus.emit(GeneratorSet(seed, exact_call_site()))
            return result

        return set_generator
