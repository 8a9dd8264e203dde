"""Leave out of a run what no two runs have alike: dropout, and the statistics of each batch.

Dropout draws another mask for each micro-batch, and batch norm in training mode normalises each by
its own mean and variance: then no accumulation gives the gradient of the full batch, however right
the loop is. So nothing is dropped, and batch norm uses its running statistics as in evaluation.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad

from gradcheck_suite._runtime.patches import Patches
from gradcheck_suite._torch_compat import clipping_internals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

__all__ = ["deterministic", "without_clipping"]


@contextmanager
def deterministic(modules: Iterable[nn.Module]) -> Iterator[set[str]]:
    """Change these modules for the time inside, and give what that leaves out, in words."""
    excluded: set[str] = set()
    changed: list[tuple[nn.Module, str, float]] = []
    handles: list[Any] = []
    for model in modules:
        for name, module in model.named_modules():
            for attribute, value in _rates(module):
                excluded.add("dropout, which was off")
                changed.append((module, attribute, value))
                setattr(module, attribute, 0.0)
            if isinstance(module, _BatchNorm):
                words = f"batch norm `{name}` in training mode, which " + (
                    "used its running statistics"
                    if module.running_mean is not None
                    else "has no running statistics and normalised each batch by its own"
                )
                handles += _without_batch_statistics(module, words, excluded)
    try:
        yield excluded
    finally:
        for handle in handles:
            handle.remove()
        for module, attribute, value in changed:
            setattr(module, attribute, value)


@contextmanager
def without_clipping() -> Iterator[None]:
    """Let ``clip_grad_norm_`` compute norms and change nothing for the time inside."""
    patches = Patches()
    by_norm, _ = clipping_internals()
    if by_norm.startswith("_"):  # else it returns the norm, and stays
        patches.replace(clip_grad, by_norm, _leave_alone)
    try:
        yield
    finally:
        patches.restore()


def _leave_alone(*_arguments: Any, **_options: Any) -> None:
    """Stand for what scales gradients."""


def _rates(module: nn.Module) -> list[tuple[str, float]]:
    """Return the rates of dropout that a module has, by torch's and other libraries' names.

    ``p`` of dropout layers, ``dropout`` of attention and recurrent layers, ``drop_prob``.
    """
    is_layer = "Drop" in type(module).__name__
    return [
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, float) and value > 0 and ("drop" in name or (is_layer and name == "p"))
    ]


def _without_batch_statistics(
    module: _BatchNorm, words: str, excluded: set[str]
) -> tuple[Any, Any]:
    trained = False

    def before(module: nn.Module, _arguments: Any) -> None:
        nonlocal trained
        trained = module.training
        if trained:
            excluded.add(words)
            module.training = False

    def after(module: nn.Module, *_: Any) -> None:
        module.training = trained

    return (
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, always_call=True),
    )
