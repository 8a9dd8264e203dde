"""Every mistake that gradcheck-suite knows, told once.

Codes never change meaning. ``ENTRIES`` holds them all in the order of their codes, ``FAMILIES`` the
groups that their first digits make; ``find`` looks one up by code or slug, and ``suggest`` helps
where there is none. The texts are what ``gradcheck-suite explain`` prints; they stand in files,
each of which is read when it is first asked for.
"""

from __future__ import annotations

from gradcheck_suite.catalogue.entry import Entry, Family, named

__all__ = [
    "ACCUMULATION_MISMATCH",
    "BACKWARD_ARITY",
    "BACKWARD_TWICE",
    "BATCHED_GRADIENT_MISMATCH",
    "CHECKPOINT_CUTS_GRAPH",
    "CLIP_BEFORE_UNSCALE",
    "CLIP_MISPLACED",
    "COMPILED_GRADIENT_MISMATCH",
    "CONSTANT_LOSS_TERM",
    "COPY_LEFT_BEHIND",
    "COPY_ONTO_ITSELF",
    "CREATE_GRAPH_CYCLE",
    "DATA_WRITE",
    "DETACHED_OUTPUT",
    "DROPOUT_IGNORES_EVAL",
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
    "HOOK_PILES_UP",
    "INITIAL_STATISTICS",
    "INPLACE_ON_SAVED_OUTPUT",
    "INPUT_WRITTEN_IN_PLACE",
    "KEPT_BY_REFERENCE",
    "LAYOUT_DEPENDENT_GRADIENT",
    "LEAF_INPLACE",
    "LEAF_REBOUND",
    "LEARNING_RATE_ZERO",
    "LEFTOVER_GRADIENT",
    "LEGACY_FUNCTION",
    "LEGACY_SCALAR_INDEX",
    "LEGACY_VARIABLE",
    "LEGACY_VOLATILE",
    "LOADED_AND_OVERWRITTEN",
    "MISSING_MARK_DIRTY",
    "MISSING_ONCE_DIFFERENTIABLE",
    "MISSING_ZERO_GRAD",
    "NONDETERMINISTIC_GRADIENT",
    "NONE_GRADIENT",
    "NONLINEAR_BACKWARD",
    "NON_FINITE_GRADIENT",
    "NOTHING_LOADED",
    "NO_EFFECT",
    "OPTIMIZER_MADE_ANEW",
    "OUTER_BROADCAST",
    "OUTPUT_WRONGLY_DIFFERENTIABLE",
    "PARAMETER_IN_TWO_OPTIMIZERS",
    "PARAMETER_NOT_OPTIMIZED",
    "PARAMETER_WITHOUT_GRADIENT",
    "RANKS_DIVERGED",
    "RECOMPUTED_DIFFERENTLY",
    "REFUSED_BY_TORCH",
    "REPEATED_LAYER",
    "RETAIN_GRAPH",
    "SAVED_INTERMEDIATE",
    "SAVED_TENSOR_CORRUPTED",
    "SAVED_TENSOR_MODIFIED",
    "SCALER_MISUSE",
    "SCHEDULER_BEFORE_STEP",
    "SCHEDULE_NOT_RESTORED",
    "SCHEDULE_NOT_STEPPED",
    "SEEDED_AGAIN",
    "SLICE_READ_THEN_WRITE",
    "SLICE_WRITE_IN_LOOP",
    "STALE_PARAMETER",
    "STATE_LEFT_BY_EVALUATION",
    "STATE_NOT_DETACHED",
    "STEP_BEFORE_SECOND_BACKWARD",
    "STEP_INSIDE_AUTOCAST",
    "STEP_WITHOUT_BACKWARD",
    "STEP_WITHOUT_EFFECT",
    "STUCK_IN_EVAL",
    "TENSOR_ON_CTX",
    "TRAIN_MODE_IN_EVAL",
    "UNDEFINED_GRADIENT",
    "UNREGISTERED_MODULE",
    "WEIGHTS_NOT_RESTORED",
    "WRONG_GRADIENT",
    "WRONG_SECOND_ORDER",
    "ZERO_GRAD_MISPLACED",
    "Entry",
    "Family",
    "entries_of",
    "find",
    "suggest",
]

ENTRIES: tuple[Entry, ...] = (
    LEAF_INPLACE := named("GCS101-leaf-inplace"),
    LEAF_REBOUND := named("GCS102-leaf-rebound"),
    SAVED_TENSOR_MODIFIED := named("GCS103-saved-tensor-modified"),
    SAVED_TENSOR_CORRUPTED := named("GCS104-saved-tensor-corrupted"),
    DATA_WRITE := named("GCS105-data-write"),
    SLICE_WRITE_IN_LOOP := named("GCS106-slice-write-in-loop"),
    SLICE_READ_THEN_WRITE := named("GCS107-slice-read-then-write"),
    INPLACE_ON_SAVED_OUTPUT := named("GCS108-inplace-on-saved-output"),
    STEP_BEFORE_SECOND_BACKWARD := named("GCS109-step-before-second-backward"),
    COPY_ONTO_ITSELF := named("GCS110-copy-onto-itself"),
    KEPT_BY_REFERENCE := named("GCS111-kept-by-reference"),
    INPUT_WRITTEN_IN_PLACE := named("GCS112-input-written-in-place"),
    GRAPH_KEPT := named("GCS201-graph-kept"),
    STATE_NOT_DETACHED := named("GCS202-state-not-detached"),
    RETAIN_GRAPH := named("GCS203-retain-graph"),
    EVAL_WITH_GRAPH := named("GCS204-eval-with-graph"),
    TENSOR_ON_CTX := named("GCS205-tensor-on-ctx"),
    CREATE_GRAPH_CYCLE := named("GCS206-create-graph-cycle"),
    HOOK_KEEPS_GRAPH := named("GCS207-hook-keeps-graph"),
    BACKWARD_TWICE := named("GCS208-backward-twice"),
    HOOK_PILES_UP := named("GCS209-hook-piles-up"),
    MISSING_ZERO_GRAD := named("GCS301-missing-zero-grad"),
    ZERO_GRAD_MISPLACED := named("GCS302-zero-grad-misplaced"),
    STEP_WITHOUT_BACKWARD := named("GCS303-step-without-backward"),
    CLIP_MISPLACED := named("GCS304-clip-misplaced"),
    CLIP_BEFORE_UNSCALE := named("GCS305-clip-before-unscale"),
    SCHEDULER_BEFORE_STEP := named("GCS306-scheduler-before-step"),
    PARAMETER_NOT_OPTIMIZED := named("GCS307-parameter-not-optimized"),
    STALE_PARAMETER := named("GCS308-stale-parameter"),
    LEFTOVER_GRADIENT := named("GCS309-leftover-gradient"),
    SCALER_MISUSE := named("GCS310-scaler-misuse"),
    ACCUMULATION_MISMATCH := named("GCS311-accumulation-mismatch"),
    PARAMETER_IN_TWO_OPTIMIZERS := named("GCS312-parameter-in-two-optimizers"),
    STEP_WITHOUT_EFFECT := named("GCS313-step-without-effect"),
    STEP_INSIDE_AUTOCAST := named("GCS314-step-inside-autocast"),
    LEARNING_RATE_ZERO := named("GCS315-learning-rate-zero"),
    WEIGHTS_NOT_RESTORED := named("GCS316-weights-not-restored"),
    SCHEDULE_NOT_RESTORED := named("GCS317-schedule-not-restored"),
    NO_EFFECT := named("GCS318-no-effect"),
    OPTIMIZER_MADE_ANEW := named("GCS319-optimizer-made-anew"),
    SCHEDULE_NOT_STEPPED := named("GCS320-schedule-not-stepped"),
    GRAPH_BROKEN := named("GCS401-graph-broken"),
    FORWARD_UNDER_NO_GRAD := named("GCS402-forward-under-no-grad"),
    PARAMETER_WITHOUT_GRADIENT := named("GCS403-parameter-without-gradient"),
    UNREGISTERED_MODULE := named("GCS404-unregistered-module"),
    FORCED_REQUIRES_GRAD := named("GCS405-forced-requires-grad"),
    FROZEN_PARAMETER := named("GCS406-frozen-parameter"),
    GRAD_READ_ON_NON_LEAF := named("GCS407-grad-read-on-non-leaf"),
    CHECKPOINT_CUTS_GRAPH := named("GCS408-checkpoint-cuts-graph"),
    FROZEN_BUT_CHANGED := named("GCS409-frozen-but-changed"),
    REFUSED_BY_TORCH := named("GCS410-refused-by-torch"),
    CONSTANT_LOSS_TERM := named("GCS411-constant-loss-term"),
    REPEATED_LAYER := named("GCS412-repeated-layer"),
    NOTHING_LOADED := named("GCS413-nothing-loaded"),
    COPY_LEFT_BEHIND := named("GCS414-copy-left-behind"),
    LOADED_AND_OVERWRITTEN := named("GCS415-loaded-and-overwritten"),
    BACKWARD_ARITY := named("GCS501-backward-arity"),
    LEGACY_FUNCTION := named("GCS502-legacy-function"),
    MISSING_MARK_DIRTY := named("GCS503-missing-mark-dirty"),
    MISSING_ONCE_DIFFERENTIABLE := named("GCS504-missing-once-differentiable"),
    OUTPUT_WRONGLY_DIFFERENTIABLE := named("GCS505-output-wrongly-differentiable"),
    GRAD_OUTPUT_MODIFIED := named("GCS506-grad-output-modified"),
    SAVED_INTERMEDIATE := named("GCS507-saved-intermediate"),
    NONE_GRADIENT := named("GCS508-none-gradient"),
    WRONG_GRADIENT := named("GCS601-wrong-gradient"),
    WRONG_SECOND_ORDER := named("GCS602-wrong-second-order"),
    NONDETERMINISTIC_GRADIENT := named("GCS603-nondeterministic-gradient"),
    NON_FINITE_GRADIENT := named("GCS604-non-finite-gradient"),
    FORWARD_MODE_MISMATCH := named("GCS605-forward-mode-mismatch"),
    BATCHED_GRADIENT_MISMATCH := named("GCS606-batched-gradient-mismatch"),
    UNDEFINED_GRADIENT := named("GCS607-undefined-gradient"),
    DETACHED_OUTPUT := named("GCS608-detached-output"),
    LAYOUT_DEPENDENT_GRADIENT := named("GCS609-layout-dependent-gradient"),
    NONLINEAR_BACKWARD := named("GCS610-nonlinear-backward"),
    COMPILED_GRADIENT_MISMATCH := named("GCS611-compiled-gradient-mismatch"),
    DTYPE_CHANGED := named("GCS612-dtype-changed"),
    RECOMPUTED_DIFFERENTLY := named("GCS613-recomputed-differently"),
    OUTER_BROADCAST := named("GCS614-outer-broadcast"),
    TRAIN_MODE_IN_EVAL := named("GCS701-train-mode-in-eval"),
    STUCK_IN_EVAL := named("GCS702-stuck-in-eval"),
    DROPOUT_IGNORES_EVAL := named("GCS703-dropout-ignores-eval"),
    INITIAL_STATISTICS := named("GCS704-initial-statistics"),
    SEEDED_AGAIN := named("GCS705-seeded-again"),
    STATE_LEFT_BY_EVALUATION := named("GCS706-state-left-by-evaluation"),
    RANKS_DIVERGED := named("GCS801-ranks-diverged"),
    GRADIENT_NOT_SYNCHRONIZED := named("GCS802-gradient-not-synchronized"),
    LEGACY_VARIABLE := named("GCS901-legacy-variable"),
    LEGACY_VOLATILE := named("GCS902-legacy-volatile"),
    LEGACY_SCALAR_INDEX := named("GCS903-legacy-scalar-index"),
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

    >>> [entry.code for entry in entries_of(FAMILIES[6])][:2]
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
    from gradcheck_suite.catalogue.search import nearest  # noqa: PLC0415 - after a slip only

    return nearest(name, ENTRIES)


def unknown(name: str) -> str:
    """Say of a name that no mistake has it, and which may have been meant.

    >>> unknown("GSC301")
    "'GSC301', and no mistake has that code or name; did you mean GCS301?"
    """
    near = ", ".join(suggest(name))
    advice = f"did you mean {near}?" if near else "`gradcheck-suite rules` lists the mistakes"
    return f"{name!r}, and no mistake has that code or name; {advice}"
