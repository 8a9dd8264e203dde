"""Every private name of torch that gradcheck-suite touches, one small function each.

Each function has a test, says which torch it was read in, and falls back honestly where the name
is missing.
"""

from __future__ import annotations

from gradcheck_suite._torch_floor import require_torch

# Whatever runs code imports this package first.
require_torch()

# ruff: noqa: E402 - as just said
from gradcheck_suite._torch_compat.engine import (
    Hooks,
    add_post_hooks,
    current_node,
    engine_entry_points,
    hooks_registered,
    inside_backward,
    keeps_and_makes_graph,
    push_saved_tensors_hooks,
    remove_saved_tensors_hooks,
    saved_tensors_hooks_are_disabled,
    step_aside_from_backward,
    top_saved_tensors_hooks,
)
from gradcheck_suite._torch_compat.functions import (
    around_custom_functions,
    without_reentrant_checkpoints,
)
from gradcheck_suite._torch_compat.limits import limits
from gradcheck_suite._torch_compat.modes import (
    changing_results,
    dispatch_mode_is_active,
    function_mode_is_active,
    jit_is_tracing,
    noting_operators,
    transform_is_active,
    without_dispatch_modes,
    without_torch_function,
    without_transforms,
)
from gradcheck_suite._torch_compat.modules import (
    clipping_internals,
    has_backward_hooks,
    is_compiled,
    optimizer_was_made,
    power_iterations,
    standing_in,
)
from gradcheck_suite._torch_compat.nodes import (
    HOOKED,
    NO_SEQUENCE_NUMBER,
    SAVED_TENSORS_TELL,
    Following,
    HookedType,
    RawSaved,
    answering,
    custom_function_class,
    keeps_its_size,
    next_sequence_number,
    node_metadata,
    node_output_types,
    node_sequence_number,
    read_saved,
    saved_as,
    saved_attribute_names,
    saved_attributes,
    saved_input_edge,
    saves_under,
    sequence_number_of,
    sequence_numbers,
)
from gradcheck_suite._torch_compat.replacing import (
    bound_method_maker,
    forget_compiler_tables,
    forget_torchscript,
    in_place_functions,
    teach_torchscript,
)
from gradcheck_suite._torch_compat.tensors import (
    flattened,
    has_gradient_hooks,
    is_view,
    sparse_coo_parts,
    storage_address,
    storage_key,
    version_of,
)

__all__ = [
    "HOOKED",
    "NO_SEQUENCE_NUMBER",
    "SAVED_TENSORS_TELL",
    "Following",
    "HookedType",
    "Hooks",
    "RawSaved",
    "add_post_hooks",
    "answering",
    "around_custom_functions",
    "bound_method_maker",
    "changing_results",
    "clipping_internals",
    "current_node",
    "custom_function_class",
    "dispatch_mode_is_active",
    "engine_entry_points",
    "flattened",
    "forget_compiler_tables",
    "forget_torchscript",
    "function_mode_is_active",
    "has_backward_hooks",
    "has_gradient_hooks",
    "hooks_registered",
    "in_place_functions",
    "inside_backward",
    "is_compiled",
    "is_view",
    "jit_is_tracing",
    "keeps_and_makes_graph",
    "keeps_its_size",
    "limits",
    "next_sequence_number",
    "node_metadata",
    "node_output_types",
    "node_sequence_number",
    "noting_operators",
    "optimizer_was_made",
    "power_iterations",
    "push_saved_tensors_hooks",
    "read_saved",
    "remove_saved_tensors_hooks",
    "saved_as",
    "saved_attribute_names",
    "saved_attributes",
    "saved_input_edge",
    "saved_tensors_hooks_are_disabled",
    "saves_under",
    "sequence_number_of",
    "sequence_numbers",
    "sparse_coo_parts",
    "standing_in",
    "step_aside_from_backward",
    "storage_address",
    "storage_key",
    "teach_torchscript",
    "top_saved_tensors_hooks",
    "transform_is_active",
    "version_of",
    "without_dispatch_modes",
    "without_reentrant_checkpoints",
    "without_torch_function",
    "without_transforms",
]
