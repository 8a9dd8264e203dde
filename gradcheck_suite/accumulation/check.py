"""Whether gradient accumulation gives each step the gradient of the full batch.

The loop is the user's own. It runs over the full batch as a window of one, and over its
micro-batches, twice around. What counts is the gradient that each step of an optimizer is given:
momentum, Adam's division and the learning rate come after that, so that their rounding has no part
in it. The full batch is run from the very values that the window began with.

Two sums of the same terms in another order differ by rounding. How much is measured, not assumed:
the gradient of the full batch is computed again at parameters that are moved by one rounding error
each, and the change is the noise, which contains what conditioning and cancellation make of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_suite.accumulation.batches import micro_batches as cut
from gradcheck_suite.accumulation.comparison import Comparison
from gradcheck_suite.accumulation.runs import TrainingLoop
from gradcheck_suite.accumulation.signatures import refuse_maker, refuse_signature
from gradcheck_suite.accumulation.states import States, is_made_by
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.target.random_state import preserved_randomness

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite.accumulation.batches import Split
    from gradcheck_suite.findings import Report

__all__ = ["check_accumulation"]

_FEWEST = 2
"""The fewest micro-batches to compare with: one is the full batch itself."""


def check_accumulation(
    make: Any,
    train: Callable[[Any, list[Any], int], object],
    batch: Any,
    *,
    micro_batches: int = 4,
    loss: Callable[[Any, Any], Any] | None = None,
    split: Split | None = None,
    seed: int = 0,
) -> Report:
    """Check that a loop which accumulates gradients applies those of the full batch.

    Nothing of the user's is trained or changed: runs get what ``make`` returns anew, or copies.
    Dropout is off in all runs, and batch norm uses its running statistics; the report says so.

    Args:
        make: returns what the loop trains, in any form that holds the model and its optimizer: a
            tuple, a dict, an object with attributes. Or that itself.
        train: the loop, called as ``train(state, batches, accumulation_steps)``: it steps once for
            each ``accumulation_steps`` of the ``batches``.
        batch: a full batch.
        micro_batches: into how many it is cut.
        loss: ``loss(state, batch)`` is the loss of a full batch. For loops that can't be told how
            many steps to accumulate: without it, ``train(state, [batch], 1)`` is compared with.
        split: ``split(batch, number)`` returns so many micro-batches; by default, tensors are cut
            along their first dimension.
        seed: of the random numbers that are drawn.

    Returns:
        A report with a finding for each cause, at the line of the backward, the step or the
        clearing.

    Raises:
        UsageError: an argument makes no sense, or the loop does not step.

    >>> import torch, gradcheck_suite as gs
    >>> def make():
    ...     model = torch.nn.Linear(3, 1)
    ...     return model, torch.optim.SGD(model.parameters(), lr=0.1)
    >>> def train(state, batches, accumulation_steps):
    ...     model, optimizer = state
    ...     for index, x in enumerate(batches):
    ...         model(x).pow(2).mean().backward()
    ...         if (index + 1) % accumulation_steps == 0:
    ...             optimizer.step()
    ...             optimizer.zero_grad()
    >>> report = gs.check_accumulation(make, train, torch.randn(8, 3), micro_batches=2)
    >>> print(report.findings[0].hint)
    divide the loss of each micro-batch by 2 before backward()
    """
    number: object = micro_batches
    if not isinstance(number, int) or isinstance(number, bool) or number < _FEWEST:
        raise UsageError(
            f"check_accumulation: micro_batches must be a whole number of at least {_FEWEST}, got "
            f"{number!r}"
        )
    for name, value in (("train", train), ("loss", loss), ("split", split)):
        if not callable(value) and (name == "train" or value is not None):
            raise UsageError(f"check_accumulation: {name} must be a function, got {value!r}")
    refuse_signature(train)
    if is_made_by(make):
        refuse_maker(make)
    with preserved_randomness():
        comparison = Comparison(
            TrainingLoop(
                states=States(make, seed),
                train=train,
                batch=batch,
                parts=cut(batch, number, split),
                loss=loss,
                seed=seed,
            )
        )
        comparison.run()
        return comparison.report()
