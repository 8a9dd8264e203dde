"""All rules of the linter, one module each.

The table below knows their codes without importing them, because they need libcst.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from gradcheck_lint.rules._container_signs import CONTAINER_ON_ATTRIBUTE
from gradcheck_lint.rules._signs import (
    BACKWARD_CALL,
    CALL_IN_PLACE,
    CONVERTED_PARAMETER,
    DROPOUT_IN_PLACE,
    EVALUATION,
    FACTORY_CALL,
    FUNCTION_CLASS,
    ITERATOR_OF_PARAMETERS,
    LAYER_IN_PLACE,
    LEAF_WORD,
    LOOP_OVER_PARAMETERS,
    OPTIMIZER_NAME,
    OPTIMIZER_PACKAGE,
    OUTPUT_SAVING_CALL,
    PARAMETER_ALIAS,
    REPLACED_MODEL,
    ROOT_OF_DISTANCES,
    STEP_CALL,
    TRAINING_STEP,
    UNSCALE_CALL,
    UPDATE_BY_GRADIENT,
    Pattern,
    Signs,
)
from gradcheck_lint.rules._write_signs import (
    AUGMENTED_WRITE,
    ITEM_MADE_OF_ITEM,
    ITEM_WRITE,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from gradcheck_lint.rules._rule import Rule


_Groups: TypeAlias = "tuple[tuple[bytes | Pattern, ...], ...]"


@dataclass(frozen=True, slots=True)
class RuleReference:
    """Where a rule is, and which words source must have for it to find anything.

    ``needs`` holds alternatives: source matters if it has one sign of every group.
    """

    code: str
    slug: str
    module: str
    name: str
    needs: _Groups

    def __post_init__(self) -> None:
        """Put words first: patterns take a hundred times as long."""
        ordered = sorted(self.needs, key=lambda group: type(group[0]) is not bytes)
        object.__setattr__(self, "needs", tuple(ordered))

    def concerns(self, source: bytes | Signs) -> bool:
        """Tell whether the rule could find anything in this source."""
        signs = source if isinstance(source, Signs) else Signs(source)
        # What other rules have looked for in vain costs nothing to ask again.
        return not any(map(signs.is_missing, self.needs)) and all(map(signs.has_any, self.needs))

    def load(self) -> Rule:
        """Import the rule, and make the one that serves all files."""
        return _loaded(self.module, self.name)


@cache
def _loaded(module: str, name: str) -> Rule:
    rule: type[Rule] = getattr(importlib.import_module(module), name)
    return rule()


RULES: Final = (
    RuleReference(
        "GCS101",
        "leaf-inplace",
        "gradcheck_lint.rules.leaf_inplace",
        "LeafInplace",
        ((LEAF_WORD,), (CALL_IN_PLACE, AUGMENTED_WRITE, ITEM_WRITE, LAYER_IN_PLACE)),
    ),
    RuleReference(
        "GCS102",
        "leaf-rebound",
        "gradcheck_lint.rules.leaf_rebound",
        "LeafRebound",
        (
            (b"requires_grad", b"Parameter", b"parameters"),
            (CONVERTED_PARAMETER, PARAMETER_ALIAS, UPDATE_BY_GRADIENT, LOOP_OVER_PARAMETERS),
        ),
    ),
    RuleReference(
        "GCS103",
        "saved-tensor-modified",
        "gradcheck_lint.rules.saved_tensor_modified",
        "SavedTensorModified",
        (
            (BACKWARD_CALL, b"def forward"),
            (CALL_IN_PLACE, AUGMENTED_WRITE, ITEM_WRITE, LAYER_IN_PLACE),
            (b"requires_grad", b"nn."),
        ),
    ),
    RuleReference(
        "GCS105",
        "data-write",
        "gradcheck_lint.rules.data_write",
        "DataWrite",
        ((b".data", b".detach()", b"no_grad"), (BACKWARD_CALL, b"def forward")),
    ),
    RuleReference(
        "GCS106",
        "slice-write-in-loop",
        "gradcheck_lint.rules.slice_write_in_loop",
        "SliceWriteInLoop",
        ((b"for",), (ITEM_WRITE, AUGMENTED_WRITE)),
    ),
    RuleReference(
        "GCS107",
        "slice-read-then-write",
        "gradcheck_lint.rules.slice_read_then_write",
        "SliceReadThenWrite",
        ((ITEM_MADE_OF_ITEM,), (FACTORY_CALL, b"nn.", b"def forward")),
    ),
    RuleReference(
        "GCS108",
        "inplace-on-saved-output",
        "gradcheck_lint.rules.inplace_on_saved_output",
        "InplaceOnSavedOutput",
        (
            (CALL_IN_PLACE, AUGMENTED_WRITE, ITEM_WRITE, LAYER_IN_PLACE),
            (OUTPUT_SAVING_CALL, DROPOUT_IN_PLACE),
        ),
    ),
    RuleReference(
        "GCS109",
        "step-before-second-backward",
        "gradcheck_lint.rules.step_before_second_backward",
        "StepBeforeSecondBackward",
        ((BACKWARD_CALL,), (b"step(",), (OPTIMIZER_NAME,)),
    ),
    RuleReference(
        "GCS201",
        "graph-kept",
        "gradcheck_lint.rules.graph_kept",
        "GraphKept",
        ((BACKWARD_CALL, TRAINING_STEP), (b"for", b"while", b"class", b"return")),
    ),
    RuleReference(
        "GCS202",
        "state-not-detached",
        "gradcheck_lint.rules.state_not_detached",
        "StateNotDetached",
        ((BACKWARD_CALL,), (b"for", b"while")),
    ),
    RuleReference(
        "GCS203",
        "retain-graph",
        "gradcheck_lint.rules.retain_graph",
        "RetainGraph",
        ((b"retain_graph",), (BACKWARD_CALL,)),
    ),
    RuleReference(
        "GCS204",
        "eval-with-graph",
        "gradcheck_lint.rules.eval_with_graph",
        "EvalWithGraph",
        ((EVALUATION,), (b"for", b"while", b"eval", b"test", b"valid", b"predict", b"infer")),
    ),
    RuleReference(
        "GCS205",
        "tensor-on-ctx",
        "gradcheck_lint.rules.tensor_on_ctx",
        "TensorOnCtx",
        ((FUNCTION_CLASS,), (b"ctx", b"self"), (b"backward",)),
    ),
    RuleReference(
        "GCS206",
        "create-graph-cycle",
        "gradcheck_lint.rules.create_graph_cycle",
        "CreateGraphCycle",
        ((b"create_graph",), (BACKWARD_CALL,)),
    ),
    RuleReference(
        "GCS207",
        "hook-keeps-graph",
        "gradcheck_lint.rules.hook_keeps_graph",
        "HookKeepsGraph",
        ((b"register_forward_hook",), (b"append(", b"+= [", b"+= (")),
    ),
    RuleReference(
        "GCS301",
        "missing-zero-grad",
        "gradcheck_lint.rules.missing_zero_grad",
        "MissingZeroGrad",
        ((BACKWARD_CALL,), (b"step", b".grad"), (b"for", b"while", b"def training_step")),
    ),
    RuleReference(
        "GCS302",
        "zero-grad-misplaced",
        "gradcheck_lint.rules.zero_grad_misplaced",
        "ZeroGradMisplaced",
        ((BACKWARD_CALL,), (b"step",), (b"zero_grad", b".grad")),
    ),
    RuleReference(
        "GCS303",
        "step-without-backward",
        "gradcheck_lint.rules.step_without_backward",
        "StepWithoutBackward",
        ((STEP_CALL,), (OPTIMIZER_NAME,)),
    ),
    RuleReference(
        "GCS304",
        "clip-misplaced",
        "gradcheck_lint.rules.clip_misplaced",
        "ClipMisplaced",
        ((b"clip_grad",), (BACKWARD_CALL,)),
    ),
    RuleReference(
        "GCS305",
        "clip-before-unscale",
        "gradcheck_lint.rules.clip_before_unscale",
        "ClipBeforeUnscale",
        ((b"clip_grad",), (b"scale(",)),
    ),
    RuleReference(
        "GCS306",
        "scheduler-before-step",
        "gradcheck_lint.rules.scheduler_before_step",
        "SchedulerBeforeStep",
        ((b"sched",), (STEP_CALL,), (OPTIMIZER_NAME,)),
    ),
    RuleReference(
        "GCS307",
        "parameter-not-optimized",
        "gradcheck_lint.rules.parameter_not_optimized",
        "ParameterNotOptimized",
        ((OPTIMIZER_PACKAGE,), (b"step(", b"parameters("), (b"nn.", ITERATOR_OF_PARAMETERS)),
    ),
    RuleReference(
        "GCS308",
        "stale-parameter",
        "gradcheck_lint.rules.stale_parameter",
        "StaleParameter",
        ((b"optim",), (b"assign=True", REPLACED_MODEL)),
    ),
    RuleReference(
        "GCS309",
        "leftover-gradient",
        "gradcheck_lint.rules.leftover_gradient",
        "LeftoverGradient",
        ((BACKWARD_CALL,), (b"step(",), (b"zero_grad",)),
    ),
    RuleReference(
        "GCS310",
        "scaler-misuse",
        "gradcheck_lint.rules.scaler_misuse",
        "ScalerMisuse",
        ((b"scale",), (STEP_CALL,), (UNSCALE_CALL, BACKWARD_CALL), (UNSCALE_CALL, OPTIMIZER_NAME)),
    ),
    RuleReference(
        "GCS401",
        "graph-broken",
        "gradcheck_lint.rules.graph_broken",
        "GraphBroken",
        (
            (BACKWARD_CALL, TRAINING_STEP),
            (
                *(b"item", b"numpy", b"tensor(", b"detach", b"argm", b"max(", b"==", b"> 0"),
                *(b">= 0", b".data", b"autograd.grad(", b"import grad"),
            ),
        ),
    ),
    RuleReference(
        "GCS402",
        "forward-under-no-grad",
        "gradcheck_lint.rules.forward_under_no_grad",
        "ForwardUnderNoGrad",
        ((BACKWARD_CALL, TRAINING_STEP), (b"no_grad", b"inference_mode", b"set_grad_enabled")),
    ),
    RuleReference(
        "GCS404",
        "unregistered-module",
        "gradcheck_lint.rules.unregistered_module",
        "UnregisteredModule",
        ((b"nn",), (b"__init__",), (b"Module",), (CONTAINER_ON_ATTRIBUTE,)),
    ),
    RuleReference(
        "GCS405",
        "forced-requires-grad",
        "gradcheck_lint.rules.forced_requires_grad",
        "ForcedRequiresGrad",
        ((BACKWARD_CALL, TRAINING_STEP), (b"requires_grad",)),
    ),
    RuleReference(
        "GCS406",
        "frozen-parameter",
        "gradcheck_lint.rules.frozen_parameter",
        "FrozenParameter",
        ((b"startswith", b"optim"), (b"requires_grad",)),
    ),
    RuleReference(
        "GCS407",
        "grad-read-on-non-leaf",
        "gradcheck_lint.rules.grad_read_on_non_leaf",
        "GradReadOnNonLeaf",
        ((b".grad", b"optim"), (BACKWARD_CALL,), (b"requires_grad", b"Parameter", b".grad")),
    ),
    RuleReference(
        "GCS408",
        "checkpoint-cuts-graph",
        "gradcheck_lint.rules.checkpoint_cuts_graph",
        "CheckpointCutsGraph",
        ((b"utils.checkpoint", b"utils import checkpoint"), (b"def forward",)),
    ),
    RuleReference(
        "GCS501",
        "backward-arity",
        "gradcheck_lint.rules.backward_arity",
        "BackwardArity",
        ((FUNCTION_CLASS,), (b"backward",)),
    ),
    RuleReference(
        "GCS502",
        "legacy-function",
        "gradcheck_lint.rules.legacy_function",
        "LegacyFunction",
        ((FUNCTION_CLASS,), (b"def forward",)),
    ),
    RuleReference(
        "GCS503",
        "missing-mark-dirty",
        "gradcheck_lint.rules.missing_mark_dirty",
        "MissingMarkDirty",
        ((FUNCTION_CLASS,), (b"backward",)),
    ),
    RuleReference(
        "GCS504",
        "missing-once-differentiable",
        "gradcheck_lint.rules.missing_once_differentiable",
        "MissingOnceDifferentiable",
        ((FUNCTION_CLASS,), (b"backward",)),
    ),
    RuleReference(
        "GCS505",
        "output-wrongly-differentiable",
        "gradcheck_lint.rules.output_wrongly_differentiable",
        "OutputWronglyDifferentiable",
        ((FUNCTION_CLASS,), (b"backward",)),
    ),
    RuleReference(
        "GCS506",
        "grad-output-modified",
        "gradcheck_lint.rules.grad_output_modified",
        "GradOutputModified",
        ((FUNCTION_CLASS,), (b"backward",)),
    ),
    RuleReference(
        "GCS507",
        "saved-intermediate",
        "gradcheck_lint.rules.saved_intermediate",
        "SavedIntermediate",
        ((FUNCTION_CLASS,), (b"save_for_backward",)),
    ),
    RuleReference(
        "GCS508",
        "none-gradient",
        "gradcheck_lint.rules.none_gradient",
        "NoneGradient",
        ((FUNCTION_CLASS,), (b"needs_input_grad", b"Parameter")),
    ),
    RuleReference(
        "GCS604",
        "non-finite-gradient",
        "gradcheck_lint.rules.non_finite_gradient",
        "NonFiniteGradient",
        (
            (b"torch.where(", b"import where", ROOT_OF_DISTANCES),
            (b"sqrt", b"log", b"acos", b"asin", b"reciprocal", b"0.5", b"pow("),
        ),
    ),
    RuleReference(
        "GCS701",
        "train-mode-in-eval",
        "gradcheck_lint.rules.train_mode_in_eval",
        "TrainModeInEval",
        ((b"no_grad", b"inference_mode"), (BACKWARD_CALL,), (b"step(",)),
    ),
    RuleReference(
        "GCS702",
        "stuck-in-eval",
        "gradcheck_lint.rules.stuck_in_eval",
        "StuckInEval",
        ((b".eval()",), (BACKWARD_CALL,), (b"step(",)),
    ),
    RuleReference(
        "GCS802",
        "gradient-not-synchronized",
        "gradcheck_lint.rules.gradient_not_synchronized",
        "GradientNotSynchronized",
        ((b".no_sync()", b".module("), (BACKWARD_CALL,), (STEP_CALL,)),
    ),
    RuleReference(
        "GCS901",
        "legacy-variable",
        "gradcheck_lint.rules.legacy_variable",
        "LegacyVariable",
        ((b"Variable",),),
    ),
    RuleReference(
        "GCS902",
        "legacy-volatile",
        "gradcheck_lint.rules.legacy_volatile",
        "LegacyVolatile",
        ((b"volatile",), (b"Variable",)),
    ),
    RuleReference(
        "GCS903",
        "legacy-scalar-index",
        "gradcheck_lint.rules.legacy_scalar_index",
        "LegacyScalarIndex",
        ((b".data[0]",),),
    ),
)

SLUGS: Final = {rule.slug: rule.code for rule in RULES}
"""The code of each rule by its name."""


def load_rules(codes: Collection[str] | None = None, source: bytes | None = None) -> list[Rule]:
    """Return the rules with these codes that concern ``source``, in the order of their codes."""
    return [
        reference.load()
        for reference in RULES
        if (codes is None or reference.code in codes)
        and (source is None or reference.concerns(source))
    ]
