"""Torch's own errors and warnings about autograd: what each means, and what to change.

The patterns hold for the messages of torch 2.6 to 2.15, which differ in how they name a backward
node (``SplitBackward0`` or ``Split``), in the number of a tensor and in their advice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Advice", "advice_on_error", "advice_on_warning"]


@dataclass(frozen=True, slots=True)
class Advice:
    """What a message of torch's means.

    Attributes:
        entry: the mistake.
        pattern: is found in the message.
        words: what happened and what was expected; filled with the named groups of the pattern.
        hint: the next step.
        method: the method of the custom Function in group ``function`` that is to be changed, and
            what its line is found by; None where the line that ran is.
        in_backward: whether the message means this only where a backward fails.
        severity: of a warning.
    """

    entry: catalogue.Entry
    pattern: str
    words: str
    hint: str
    method: tuple[str, str | None] | None = None
    in_backward: bool = False
    severity: Severity = Severity.NOTE

    def groups(self, text: str) -> dict[str, str] | None:
        """Return the named parts of a message that means this, None for any other."""
        hit = re.search(self.pattern, text, re.DOTALL)
        return None if hit is None else {k: v or "" for k, v in hit.groupdict().items()}


def advice_on_error(text: str, *, in_backward: bool) -> Iterator[tuple[Advice, dict[str, str]]]:
    """Yield what a message of an exception means, the closest first.

    >>> [(advice, groups)] = advice_on_error(
    ...     "function ScaleBackward returned an incorrect number of gradients (expected 2, got 1)",
    ...     in_backward=True,
    ... )
    >>> advice.entry.code, groups["function"]
    ('GCS501', 'Scale')
    """
    for advice in _ERRORS:
        groups = advice.groups(text) if in_backward or not advice.in_backward else None
        if groups is not None:
            yield advice, groups


def advice_on_warning(text: str, *, from_torch: bool) -> Advice | None:
    """Return what a warning means; None for one that has nothing to do with autograd."""
    for advice in _WARNINGS:
        if advice.groups(text) is not None:
            return advice
    return _OTHER_WARNING if from_torch and _ABOUT_AUTOGRAD.search(text) else None


_FUNCTION = r"(?P<function>\w+?)(?:Backward)?"
_IS_A_VIEW = r"is a view and is being modified inplace"
_RETURN = r"\breturn\b"

_ERRORS = (
    Advice(
        catalogue.SAVED_TENSOR_MODIFIED,
        rf"of BackwardHookFunction\w* {_IS_A_VIEW}",
        "a tensor that passes through a full backward hook was written to in place: torch makes it "
        "a view for the hook, and refuses; expected a result of its own, as of inplace=False",
        "write out of place (inplace=False, `y = y * 2`), or register the hook on a module whose "
        "input and output nothing overwrites",
    ),
    Advice(
        catalogue.SAVED_TENSOR_MODIFIED,
        rf"of {_FUNCTION} {_IS_A_VIEW}.*inside a custom Function",
        "{function} returns a view of another tensor, or an input as it is, and that was written "
        "to in place: torch refuses, as the write would bypass the backward of {function}; "
        "expected an output that owns its memory",
        "return it with .clone() in forward, or write out of place: `y = y + bias`",
        method=("forward", _RETURN),
    ),
    Advice(
        catalogue.SAVED_TENSOR_MODIFIED,
        rf"of (?P<maker>[A-Za-z]+?)(?:Backward)?\d* {_IS_A_VIEW}",
        "one of the views that chunk, split, unbind or a loop over a tensor has made, or a part of "
        "one, was written to in place: autograd can't follow the others then, and torch refuses; "
        "expected a new tensor",
        "write out of place (`b = b * s` in place of `b *= s`), or clone() the piece first",
    ),
    Advice(
        catalogue.SAVED_TENSOR_MODIFIED,
        r"view was created in (?P<mode>no_grad|inference) mode and is being modified",
        "a view that was made without recording ({mode} mode) was written to while gradients are "
        "recorded: torch can't tell which is meant, and refuses; expected both under one mode",
        "make the view where it is written to, outside of the no_grad block, or write inside it",
    ),
    Advice(
        catalogue.SAVED_TENSOR_MODIFIED,
        r"modified by an inplace operation",
        "a tensor that this backward() needs was overwritten in place since it was saved; torch "
        "refuses; expected it as it was in the forward",
        "write out of place (`x = x + y` in place of `x += y`), or clone() before writing",
    ),
    Advice(
        catalogue.LEAF_INPLACE,
        r"leaf Variable that requires grad",
        "a leaf that requires grad was written to in place while gradients are recorded; torch "
        "refuses; expected the write under no_grad, or to a copy",
        "with torch.no_grad(): around the write; or write to a copy, x.clone()",
    ),
    Advice(
        catalogue.LEAF_REBOUND,
        r"can't optimize a non-leaf Tensor",
        "an optimizer was given a tensor that an operation has made; torch refuses, as backward "
        "fills the gradients of leaves only; expected the leaf that it was made from",
        "make the tensor first, and ask for its gradient then, with requires_grad_()",
    ),
    Advice(
        catalogue.LEAF_REBOUND,
        r"cannot assign .* as parameter '(?P<name>\w+)'",
        "the parameter `{name}` was to be replaced by a computed tensor; torch refuses; expected a "
        "write into the parameter, or another attribute for what is computed",
        "with torch.no_grad(): module.{name}.copy_(value); or keep the result in a variable",
    ),
    Advice(
        catalogue.BACKWARD_TWICE,
        r"backward through the graph a second time",
        "backward() came to a graph whose buffers an earlier one has freed; torch refuses; "
        "expected a forward for each backward, or one backward for all losses",
        "add the losses up before one backward(), detach what is shared, or compute it anew",
    ),
    Advice(
        catalogue.GRAPH_BROKEN,
        r"element \d+ of (?:tensors|variables) does not require grad",
        "backward() starts from a tensor without a graph; torch refuses; expected one that was "
        "computed from a parameter while gradients are recorded",
        "call backward() on the loss itself: no detach(), item(), numpy() or no_grad on its way",
    ),
    Advice(
        catalogue.GRAPH_BROKEN,
        r"differentiated Tensors?(?: at index \d+)? appears? to not have been used",
        "autograd.grad was asked for the gradient of a tensor that the result does not depend on; "
        "torch refuses; expected a tensor that the forward was computed from",
        "hand over the tensor that the forward used, not a copy or a view of it; allow_unused=True "
        "gives None where there may be none",
    ),
    Advice(
        catalogue.GRAPH_BROKEN,
        r"differentiated Tensors?(?: at index \d+)? does not require grad",
        "autograd.grad was asked for the gradient of a tensor that does not require grad; torch "
        "refuses; expected requires_grad_() on it before the forward",
        "x.requires_grad_() before the forward that uses x",
    ),
    Advice(
        catalogue.FORWARD_UNDER_NO_GRAD,
        r"Inference tensors cannot be saved for backward",
        "a tensor that was made in inference mode is used where gradients are recorded; torch "
        "refuses; expected no_grad, or a clone",
        "make it under torch.no_grad() in place of inference_mode(), or use x.clone()",
    ),
    Advice(
        catalogue.FORWARD_UNDER_NO_GRAD,
        r"inference tensor outside (?:of )?InferenceMode",
        "a tensor that was made in inference mode was changed outside of it; torch refuses; "
        "expected no_grad, or a clone",
        "make it under torch.no_grad() in place of inference_mode(), or use x.clone()",
    ),
    Advice(
        catalogue.BACKWARD_ARITY,
        rf"[Ff]unction {_FUNCTION} returned an incorrect number of gradients "
        r"\(expected (?P<expected>\d+), got (?P<got>\d+)\)",
        "backward of {function} returned {got} gradients, expected {expected}: one for each input "
        "of forward, None where there is none",
        "return one value for each input of forward after ctx",
        method=("backward", _RETURN),
    ),
    Advice(
        catalogue.BACKWARD_ARITY,
        r"\b(?P<function>\w+)\.(?:backward|vjp)\(\) (?:takes \d+ positional|missing \d+ required)",
        "backward of {function} does not take as many gradients as forward has outputs: torch "
        "gives it one for each, also for those that are marked as non-differentiable; expected a "
        "parameter for each output after ctx",
        "def backward(ctx, grad, *others): one gradient for each output of forward; and "
        "ctx.mark_non_differentiable(mask) for an output without one",
        method=("backward", None),
        in_backward=True,
    ),
    Advice(
        catalogue.WRONG_GRADIENT,
        rf"[Ff]unction {_FUNCTION} returned an invalid gradient at index (?P<index>\d+) - "
        r"(?P<what>[^\n]*)",
        "backward of {function} returned a gradient for input {index} that does not fit it "
        "({what}); torch refuses; expected the shape, type and device of that input",
        "sum over the dimensions that the forward has broadcast, and give the input's dtype back",
        method=("backward", _RETURN),
    ),
    Advice(
        catalogue.NON_FINITE_GRADIENT,
        rf"Function '{_FUNCTION}\d*' returned nan values",
        "the backward of {function} made NaN, as anomaly mode has seen; expected finite gradients",
        "keep its input away from where the slope is infinite: sqrt(x + eps), clamp, where before "
        "the operation and not after it",
    ),
    Advice(
        catalogue.NON_FINITE_GRADIENT,
        r"total norm of order .* is non-finite",
        "the gradients that were to be clipped are NaN or infinite; clip_grad_norm_ refuses; "
        "expected finite gradients",
        "look for the operation that made them with torch.autograd.set_detect_anomaly(True)",
    ),
    Advice(
        catalogue.LEGACY_FUNCTION,
        r"Legacy autograd function with non-static forward",
        "a custom Function with instance methods was called as in old torch; torch refuses; "
        "expected static methods and apply()",
        "make forward and backward static methods that take ctx, and call Function.apply(...)",
    ),
    Advice(
        catalogue.MISSING_MARK_DIRTY,
        r"marked as dirty during the forward method were not returned",
        "a custom Function has marked an input as dirty and does not return it; torch refuses; "
        "expected every tensor of mark_dirty among the outputs",
        "return the tensor that was written to, or compute a new one and mark nothing",
    ),
    Advice(
        catalogue.SCALER_MISUSE,
        r"unscale_\(\) has already been called|unscale_\(\) is being called after step\(\)"
        r"|step\(\) has already been called since the last update|No inf checks were recorded"
        r"|Attempting to unscale FP16 gradients|_scale is None",
        "calls of a GradScaler are missing, doubled or out of order; torch refuses; expected "
        "scale(loss).backward(), unscale_, step, update, once in each step",
        "scaler.scale(loss).backward(); scaler.unscale_(optimizer); scaler.step(optimizer); "
        "scaler.update()",
    ),
    Advice(
        catalogue.LEGACY_SCALAR_INDEX,
        r"invalid index of a 0-dim tensor",
        "a tensor without dimensions was indexed, as when losses were vectors of length one; torch "
        "refuses; expected item()",
        "loss.item() in place of loss.data[0] or loss[0]",
    ),
    Advice(
        catalogue.PARAMETER_WITHOUT_GRADIENT,
        r"Expected to have finished reduction in the prior iteration",
        "some parameters of a DistributedDataParallel model got no gradient in the step before; "
        "it refuses to go on; expected every parameter in the loss of each rank",
        "use the module for the loss, freeze it, or pass find_unused_parameters=True",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"grad can be (?:implicitly created|computed) only for (?:real )?scalar outputs",
        "backward() starts from a tensor of more than one element, or a complex one; torch "
        "refuses; expected a scalar loss",
        "reduce the loss first: loss.mean().backward(), or reduction='mean'",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"Mismatch in (?:shape|length).*grad_output",
        "the gradient that backward() was given has another shape than the tensor it starts from; "
        "torch refuses; expected one value for each element",
        "backward(torch.ones_like(output)), or reduce the output first",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"Can't call numpy\(\) on Tensor that requires grad",
        "a tensor with a graph was handed to numpy, which can't follow gradients; torch refuses; "
        "expected a detached one",
        "x.detach().cpu().numpy() for what is only looked at; torch's own function where a "
        "gradient is to flow",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"[Oo]nly Tensors of floating point(?: and complex)? dtype can require gradients",
        "requires_grad was asked of a tensor of whole numbers; torch refuses; expected a "
        "floating-point one",
        "x.float().requires_grad_(); indices and labels have no gradient",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"you can only change requires_grad flags of leaf variables",
        "requires_grad of a computed tensor was to be changed; torch refuses; expected that of a "
        "leaf, or a detached copy",
        "x = x.detach() to cut the graph; freeze the parameters themselves to freeze a model",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"support the deepcopy protocol",
        "a tensor with a graph was to be copied by deepcopy, by itself or as part of an object; "
        "torch refuses; expected leaves only",
        "copy state_dict() in place of the object, or keep x.detach() in what is copied",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"cannot register a hook on a tensor that doesn't require gradient"
        r"|can't retain_grad on Tensor that has requires_grad=False",
        "a hook or retain_grad() was asked of a tensor without a graph; torch refuses; expected "
        "one that gradients flow to",
        "call it on a tensor that was computed from a parameter while gradients are recorded",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"optimizer got an empty parameter list",
        "an optimizer was given no parameters; torch refuses; expected those of the model",
        "a generator of parameters that was gone through is empty: list(model.parameters()); "
        "modules in a plain list need nn.ModuleList",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"parameters appear in more than one parameter group",
        "a parameter was given to two groups of one optimizer; torch refuses; expected each "
        "parameter in one group",
        "leave the parameters of the first group out of the second, by id",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"torch\.utils\.checkpoint: (?P<what>Recomputed values|A different number of tensors"
        r"|Unpack is being triggered|trying to save more)",
        "a checkpointed function has computed other tensors when it ran again in backward; torch "
        "refuses; expected the same computation both times",
        "keep what it reads as it was: no counters, caches, modes or random choices that change "
        "between forward and backward; debug=True of checkpoint names the operations",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"[Cc]heckpoint(?:ing)? is (?:incompatible|not compatible) with \.grad\(\)",
        "autograd.grad, or backward(inputs=...), goes through a reentrant checkpoint; torch "
        "refuses; expected a checkpoint that is not reentrant",
        "checkpoint(function, x, use_reentrant=False)",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"assign(?:ing|ed)?(?: a)? grad(?:ient)?\b.*(?:size|dtype|type|device)",
        "`.grad` was set to a tensor that does not fit its parameter; torch refuses; expected "
        "shape, dtype and device of the parameter",
        "parameter.grad = value.to(parameter).reshape(parameter.shape)",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"Can't detach views in-place",
        "detach_() was called on a view; torch refuses; expected detach()",
        "x = x.detach() in place of x.detach_()",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"marked with @once_differentiable",
        "a second derivative was asked of a custom Function that is marked as once "
        "differentiable; torch refuses; expected a backward made of operations that autograd knows",
        "write backward in differentiable operations and take the mark away, or ask for no "
        "create_graph",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"[Tt]he derivative (?:for|of) '?(?P<what>[\w:.]+)'? is not implemented"
        r"|derivative for (?P<other>[\w:.]+) is not implemented",
        "a gradient was asked through an operation that has none ({what}{other}); torch refuses; "
        "expected that operation off the way to a parameter",
        "detach() what need not be trained, or use another operation",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"save_for_backward can only save variables",
        "save_for_backward was given something that is no tensor; torch refuses; expected tensors "
        "or None",
        "keep numbers, shapes and flags as attributes: ctx.scale = scale",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"must implement either the backward or vjp method",
        "backward() came to a custom Function that has no backward; torch refuses; expected a "
        "static method backward(ctx, grad)",
        "add @staticmethod def backward(ctx, grad) to the Function",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"expected (?:Variable|Tensor) or None \(got (?P<got>\w+)\)",
        "the backward of a custom Function returned a {got} as a gradient; torch refuses; expected "
        "a tensor or None",
        "return a tensor of the input's shape for each input, None where there is none",
        in_backward=True,
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"must override the setup_context staticmethod",
        "a custom Function without setup_context was used under torch.func; torch refuses; "
        "expected forward(...) without ctx, and setup_context(ctx, inputs, output)",
        "split forward(ctx, ...) into forward(...) and setup_context(ctx, inputs, output)",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"Expected to mark a variable ready only once",
        "a parameter of a DistributedDataParallel model got its gradient twice in one backward; "
        "it refuses; expected each parameter once",
        "checkpoint with use_reentrant=False; one forward of the wrapped model for each backward",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"Found dtype \w+ but expected \w+|expected scalar type \w+ but found \w+",
        "backward mixes dtypes: a gradient came to an operation in another dtype than that of its "
        "forward; torch refuses; expected one dtype, as of the forward",
        "loss and target in one dtype: target.to(output.dtype); inside a custom backward, "
        "grad.to(x.dtype)",
        in_backward=True,
    ),
)

_WARNINGS = (
    Advice(
        catalogue.LEGACY_VOLATILE,
        r"volatile was removed",
        "volatile was asked for, which torch ignores: the graph is recorded after all; expected "
        "no_grad around what is computed from it",
        "with torch.no_grad(): around the evaluation",
        severity=Severity.WARNING,
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"[Uu]sing (?:a )?non-full backward hooks? ",
        "a backward hook of the old kind runs on a module of more than one operation: it is given "
        "the gradients of the last one alone; expected a full backward hook",
        "module.register_full_backward_hook(hook)",
        severity=Severity.WARNING,
    ),
    Advice(
        catalogue.SCHEDULER_BEFORE_STEP,
        r"`?lr_scheduler\.step\(\)`? before `?optimizer\.step\(\)`?",
        "the scheduler stepped before the optimizer ever did, so that the first learning rate is "
        "passed over; expected optimizer.step() first",
        "optimizer.step() before scheduler.step(), as often",
        severity=Severity.WARNING,
    ),
    Advice(
        catalogue.CHECKPOINT_CUTS_GRAPH,
        r"None of the inputs have requires_grad=True",
        "a reentrant checkpoint ran on inputs of which none requires grad: what is inside gets no "
        "gradient; expected use_reentrant=False, or an input that requires grad",
        "checkpoint(function, x, use_reentrant=False)",
    ),
    Advice(
        catalogue.CREATE_GRAPH_CYCLE,
        r"backward\(\) with create_graph=True will create a reference cycle",
        "backward(create_graph=True) ties parameters to their gradients; expected autograd.grad",
        "torch.autograd.grad(loss, parameters, create_graph=True)",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"target size .* is different to the input size",
        "input and target of a loss have different shapes, and are broadcast: each is compared "
        "with every other; expected the same shape",
        "target.view_as(output), or output.squeeze(-1)",
        severity=Severity.WARNING,
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"parameter group with duplicate parameters",
        "a parameter stands twice in one group of an optimizer, which steps it twice; expected "
        "each parameter once",
        "list(dict.fromkeys(parameters))",
        severity=Severity.WARNING,
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"To copy construct from a tensor",
        "torch.tensor() was given a tensor, and made a copy without its graph; expected the tensor "
        "itself, or detach().clone()",
        "x itself where a gradient is to flow, x.detach().clone() where none is",
    ),
    Advice(
        catalogue.REFUSED_BY_TORCH,
        r"requires_grad=True to a scalar",
        "a tensor with a graph was turned into a number, which has none; expected item() where "
        "that is meant",
        "x.item(), or x.detach(); torch's function in place of math's where a gradient is to flow",
    ),
)

_ABOUT_AUTOGRAD = re.compile(
    r"^(?!Error detected in |.*\.grad attribute of a Tensor that is not a leaf)"
    r".*(?:\bgradients?\b|\bautograd\b|\bbackward\b|requires_grad|\.grad\b|\bno_grad\b)",
    re.DOTALL,
)
"""Torch's warnings that have to do with gradients. Not those of anomaly mode, which quote source,
nor that on ``.grad`` of a computed tensor, which has an event of its own."""

_OTHER_WARNING = Advice(
    catalogue.REFUSED_BY_TORCH, "", "torch warns here: {text}", "see torch's own words"
)
