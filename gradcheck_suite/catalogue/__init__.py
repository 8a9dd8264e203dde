"""Every mistake that gradcheck-suite knows, told once.

Codes never change meaning. ``ENTRIES`` holds them all in the order of their codes; ``find`` looks
one up by code or slug. The texts are what ``gradcheck-suite explain`` prints.
"""

from __future__ import annotations

from gradcheck_suite.catalogue import (
    connectivity,
    distributed,
    function_contract,
    gradients,
    in_place,
    legacy,
    lifetime,
    mode,
    step_protocol,
)
from gradcheck_suite.catalogue._entry import Entry
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
from gradcheck_suite.catalogue.gradients import (
    BATCHED_GRADIENT_MISMATCH,
    COMPILED_GRADIENT_MISMATCH,
    DETACHED_OUTPUT,
    FORWARD_MODE_MISMATCH,
    LAYOUT_DEPENDENT_GRADIENT,
    NONDETERMINISTIC_GRADIENT,
    NONLINEAR_BACKWARD,
    NON_FINITE_GRADIENT,
    UNDEFINED_GRADIENT,
    WRONG_GRADIENT,
    WRONG_SECOND_ORDER,
)
from gradcheck_suite.catalogue.in_place import (
    DATA_WRITE,
    INPLACE_ON_SAVED_OUTPUT,
    LEAF_INPLACE,
    LEAF_REBOUND,
    SAVED_TENSOR_CORRUPTED,
    SAVED_TENSOR_MODIFIED,
    SLICE_READ_THEN_WRITE,
    SLICE_WRITE_IN_LOOP,
    STEP_BEFORE_SECOND_BACKWARD,
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
from gradcheck_suite.catalogue.step_protocol import (
    CLIP_BEFORE_UNSCALE,
    CLIP_MISPLACED,
    LEFTOVER_GRADIENT,
    MISSING_ZERO_GRAD,
    PARAMETER_NOT_OPTIMIZED,
    SCALER_MISUSE,
    SCHEDULER_BEFORE_STEP,
    STALE_PARAMETER,
    STEP_WITHOUT_BACKWARD,
    ZERO_GRAD_MISPLACED,
)

__all__ = [
    "ENTRIES",
    "Entry",
    "find",
    "BACKWARD_ARITY",
    "BATCHED_GRADIENT_MISMATCH",
    "CHECKPOINT_CUTS_GRAPH",
    "CLIP_BEFORE_UNSCALE",
    "CLIP_MISPLACED",
    "COMPILED_GRADIENT_MISMATCH",
    "CREATE_GRAPH_CYCLE",
    "DATA_WRITE",
    "DETACHED_OUTPUT",
    "EVAL_WITH_GRAPH",
    "FORCED_REQUIRES_GRAD",
    "FORWARD_MODE_MISMATCH",
    "FORWARD_UNDER_NO_GRAD",
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
    "STUCK_IN_EVAL",
    "TENSOR_ON_CTX",
    "TRAIN_MODE_IN_EVAL",
    "UNDEFINED_GRADIENT",
    "UNREGISTERED_MODULE",
    "WRONG_GRADIENT",
    "WRONG_SECOND_ORDER",
    "ZERO_GRAD_MISPLACED",
]

ENTRIES: tuple[Entry, ...] = (
    *in_place.ENTRIES,
    *lifetime.ENTRIES,
    *step_protocol.ENTRIES,
    *connectivity.ENTRIES,
    *function_contract.ENTRIES,
    *gradients.ENTRIES,
    *mode.ENTRIES,
    *distributed.ENTRIES,
    *legacy.ENTRIES,
)

_BY_NAME = {name: entry for entry in ENTRIES for name in (entry.code, entry.slug)}


def find(name: str) -> Entry | None:
    """Return the entry with this code (any case) or slug, or None.

    >>> find("gcs301").slug
    'missing-zero-grad'
    """
    return _BY_NAME.get(name.strip().upper()) or _BY_NAME.get(name.strip().lower())
