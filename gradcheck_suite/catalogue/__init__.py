"""Every mistake that gradcheck-suite knows, told once.

Codes never change meaning. ``ENTRIES`` holds them all in the order of their codes, ``FAMILIES`` the
groups that their first digits make; ``find`` looks one up by code or slug, and ``suggest`` helps
where there is none. The texts are what ``gradcheck-suite explain`` prints.
"""

from __future__ import annotations

from gradcheck_suite.catalogue import (
    accumulation,
    clipping,
    connectivity,
    distributed,
    function_contract,
    gradient_variants,
    gradients,
    in_place,
    legacy,
    lifetime,
    mode,
    ownership,
    saved_tensors,
    step_protocol,
    updates,
)
from gradcheck_suite.catalogue._entry import Entry, Family
from gradcheck_suite.catalogue.accumulation import ACCUMULATION_MISMATCH
from gradcheck_suite.catalogue.clipping import (
    CLIP_BEFORE_UNSCALE,
    CLIP_MISPLACED,
    SCALER_MISUSE,
)
from gradcheck_suite.catalogue.connectivity import (
    CHECKPOINT_CUTS_GRAPH,
    FORCED_REQUIRES_GRAD,
    FORWARD_UNDER_NO_GRAD,
    FROZEN_PARAMETER,
    GRAD_READ_ON_NON_LEAF,
    GRAPH_BROKEN,
    PARAMETER_WITHOUT_GRADIENT,
    UNREGISTERED_MODULE,
)
from gradcheck_suite.catalogue.distributed import (
    GRADIENT_NOT_SYNCHRONIZED,
    RANKS_DIVERGED,
)
from gradcheck_suite.catalogue.function_contract import (
    BACKWARD_ARITY,
    GRAD_OUTPUT_MODIFIED,
    LEGACY_FUNCTION,
    MISSING_MARK_DIRTY,
    MISSING_ONCE_DIFFERENTIABLE,
    NONE_GRADIENT,
    OUTPUT_WRONGLY_DIFFERENTIABLE,
    SAVED_INTERMEDIATE,
)
from gradcheck_suite.catalogue.gradient_variants import (
    BATCHED_GRADIENT_MISMATCH,
    COMPILED_GRADIENT_MISMATCH,
    FORWARD_MODE_MISMATCH,
    LAYOUT_DEPENDENT_GRADIENT,
    UNDEFINED_GRADIENT,
)
from gradcheck_suite.catalogue.gradients import (
    DETACHED_OUTPUT,
    DTYPE_CHANGED,
    NON_FINITE_GRADIENT,
    NONDETERMINISTIC_GRADIENT,
    NONLINEAR_BACKWARD,
    WRONG_GRADIENT,
    WRONG_SECOND_ORDER,
)
from gradcheck_suite.catalogue.in_place import (
    DATA_WRITE,
    LEAF_INPLACE,
    LEAF_REBOUND,
    SLICE_READ_THEN_WRITE,
    SLICE_WRITE_IN_LOOP,
)
from gradcheck_suite.catalogue.legacy import (
    LEGACY_SCALAR_INDEX,
    LEGACY_VARIABLE,
    LEGACY_VOLATILE,
)
from gradcheck_suite.catalogue.lifetime import (
    CREATE_GRAPH_CYCLE,
    EVAL_WITH_GRAPH,
    GRAPH_KEPT,
    HOOK_KEEPS_GRAPH,
    RETAIN_GRAPH,
    STATE_NOT_DETACHED,
    TENSOR_ON_CTX,
)
from gradcheck_suite.catalogue.mode import (
    STUCK_IN_EVAL,
    TRAIN_MODE_IN_EVAL,
)
from gradcheck_suite.catalogue.ownership import PARAMETER_NOT_OPTIMIZED, STALE_PARAMETER
from gradcheck_suite.catalogue.saved_tensors import (
    INPLACE_ON_SAVED_OUTPUT,
    SAVED_TENSOR_CORRUPTED,
    SAVED_TENSOR_MODIFIED,
    STEP_BEFORE_SECOND_BACKWARD,
)
from gradcheck_suite.catalogue.step_protocol import (
    LEFTOVER_GRADIENT,
    MISSING_ZERO_GRAD,
    SCHEDULER_BEFORE_STEP,
    STEP_WITHOUT_BACKWARD,
    ZERO_GRAD_MISPLACED,
)
from gradcheck_suite.catalogue.updates import (
    FROZEN_BUT_CHANGED,
    PARAMETER_IN_TWO_OPTIMIZERS,
    STEP_WITHOUT_EFFECT,
)

__all__ = [
    "ACCUMULATION_MISMATCH",
    "BACKWARD_ARITY",
    "BATCHED_GRADIENT_MISMATCH",
    "CHECKPOINT_CUTS_GRAPH",
    "CLIP_BEFORE_UNSCALE",
    "CLIP_MISPLACED",
    "COMPILED_GRADIENT_MISMATCH",
    "CREATE_GRAPH_CYCLE",
    "DATA_WRITE",
    "DETACHED_OUTPUT",
    "DTYPE_CHANGED",
    "ENTRIES",
    "EVAL_WITH_GRAPH",
    "FAMILIES",
    "FORCED_REQUIRES_GRAD",
    "FORWARD_MODE_MISMATCH",
    "FORWARD_UNDER_NO_GRAD",
    "FROZEN_BUT_CHANGED",
    "FROZEN_PARAMETER",
    "GRADIENT_NOT_SYNCHRONIZED",
    "GRAD_OUTPUT_MODIFIED",
    "GRAD_READ_ON_NON_LEAF",
    "GRAPH_BROKEN",
    "GRAPH_KEPT",
    "HOOK_KEEPS_GRAPH",
    "INPLACE_ON_SAVED_OUTPUT",
    "LAYOUT_DEPENDENT_GRADIENT",
    "LEAF_INPLACE",
    "LEAF_REBOUND",
    "LEFTOVER_GRADIENT",
    "LEGACY_FUNCTION",
    "LEGACY_SCALAR_INDEX",
    "LEGACY_VARIABLE",
    "LEGACY_VOLATILE",
    "MISSING_MARK_DIRTY",
    "MISSING_ONCE_DIFFERENTIABLE",
    "MISSING_ZERO_GRAD",
    "NONDETERMINISTIC_GRADIENT",
    "NONE_GRADIENT",
    "NONLINEAR_BACKWARD",
    "NON_FINITE_GRADIENT",
    "OUTPUT_WRONGLY_DIFFERENTIABLE",
    "PARAMETER_IN_TWO_OPTIMIZERS",
    "PARAMETER_NOT_OPTIMIZED",
    "PARAMETER_WITHOUT_GRADIENT",
    "RANKS_DIVERGED",
    "RETAIN_GRAPH",
    "SAVED_INTERMEDIATE",
    "SAVED_TENSOR_CORRUPTED",
    "SAVED_TENSOR_MODIFIED",
    "SCALER_MISUSE",
    "SCHEDULER_BEFORE_STEP",
    "SLICE_READ_THEN_WRITE",
    "SLICE_WRITE_IN_LOOP",
    "STALE_PARAMETER",
    "STATE_NOT_DETACHED",
    "STEP_BEFORE_SECOND_BACKWARD",
    "STEP_WITHOUT_BACKWARD",
    "STEP_WITHOUT_EFFECT",
    "STUCK_IN_EVAL",
    "TENSOR_ON_CTX",
    "TRAIN_MODE_IN_EVAL",
    "UNDEFINED_GRADIENT",
    "UNREGISTERED_MODULE",
    "WRONG_GRADIENT",
    "WRONG_SECOND_ORDER",
    "ZERO_GRAD_MISPLACED",
    "Entry",
    "Family",
    "entries_of",
    "find",
    "suggest",
]

ENTRIES: tuple[Entry, ...] = tuple(
    sorted(
        (
            *in_place.ENTRIES,
            *saved_tensors.ENTRIES,
            *lifetime.ENTRIES,
            *step_protocol.ENTRIES,
            *clipping.ENTRIES,
            *accumulation.ENTRIES,
            *updates.ENTRIES,
            *ownership.ENTRIES,
            *connectivity.ENTRIES,
            *function_contract.ENTRIES,
            *gradients.ENTRIES,
            *gradient_variants.ENTRIES,
            *mode.ENTRIES,
            *distributed.ENTRIES,
            *legacy.ENTRIES,
        ),
        key=lambda entry: entry.code,
    )
)

FAMILIES: tuple[Family, ...] = (
    Family("in-place", "GCS1", "Tensors that are overwritten or replaced"),
    Family("lifetime", "GCS2", "Graphs that live too long"),
    Family("step-protocol", "GCS3", "zero_grad, backward, clipping, step, and who owns what"),
    Family("connectivity", "GCS4", "Graphs that are cut and parameters that nobody trains"),
    Family("function-contract", "GCS5", "What a custom autograd.Function promises"),
    Family("gradients", "GCS6", "Gradients that are wrong"),
    Family("mode", "GCS7", "Training and evaluation mode"),
    Family("distributed", "GCS8", "Several processes"),
    Family("legacy", "GCS9", "Relics of old torch"),
)

_BY_NAME = {name: entry for entry in ENTRIES for name in (entry.code, entry.slug)}


def find(name: str) -> Entry | None:
    """Return the entry with this code (any case) or slug, or None.

    >>> find("gcs301").slug
    'missing-zero-grad'
    """
    return _BY_NAME.get(name.strip().upper()) or _BY_NAME.get(name.strip().lower())


def entries_of(family: Family) -> tuple[Entry, ...]:
    """Return the entries of a family in the order of their codes.

    >>> [entry.code for entry in entries_of(FAMILIES[6])]
    ['GCS701', 'GCS702']
    """
    return tuple(entry for entry in ENTRIES if entry.code.startswith(family.prefix))


def suggest(name: str) -> tuple[str, ...]:
    """Return the names that may have been meant by an unknown one, best first, five at most.

    Something like a code gives codes; anything else gives slugs, found by spelling and by the
    words of the entries' texts. Nothing near gives an empty tuple.

    >>> suggest("zero_grad")
    ('missing-zero-grad', 'zero-grad-misplaced')
    >>> suggest("GCS3O1")
    ('GCS301',)
    """
    from gradcheck_suite.catalogue._search import nearest  # noqa: PLC0415 - after a slip only

    return nearest(name, ENTRIES)
