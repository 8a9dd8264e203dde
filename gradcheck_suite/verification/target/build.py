"""Turn a function or module and its inputs into a subject: a function of named tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from gradcheck_suite import _torch_compat
from gradcheck_suite._runtime.memory import require_memory
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.target.arguments import (
    BoundMethod,
    name_arguments,
    resolve_target,
    split_arguments,
)
from gradcheck_suite.verification.target.closures import ReadParameters
from gradcheck_suite.verification.target.dense_views import LAYOUTS, overlaps_itself, represented
from gradcheck_suite.verification.target.non_derivatives import documented_exceptions
from gradcheck_suite.verification.target.parameter_swap import ParameterSwap
from gradcheck_suite.verification.target.pure_function import (
    Constant,
    Given,
    PureFunction,
    Variable,
)
from gradcheck_suite.verification.target.random_state import OwnGenerators
from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves
from gradcheck_suite.verification.text import one_line, short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gradcheck_suite.verification.options import CheckOptions

__all__ = ["build_function"]

_CHECKED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def build_function(
    target: object,
    inputs: object,
    kwargs: Mapping[str, object] | None,
    options: CheckOptions,
) -> PureFunction:
    """Make a pure function of named tensors of what the user gave.

    Args:
        target: a function, a module, a bound method of a module or an ``autograd.Function`` class.
        inputs: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        kwargs: further keyword arguments.
        options: cast and parameters are obeyed here.

    Raises:
        UsageError: there is nothing to check, or it can't be called so.
    """
    call, module, signature_of, title = resolve_target(target, closures=options.closures)
    positional, keyword = split_arguments(inputs, kwargs)
    names = name_arguments(signature_of, positional, keyword, title)
    builder = _Builder(options)
    arguments = [builder.add(value, name) for value, name in zip(positional, names, strict=True)]
    keywords = {name: builder.add(value, name) for name, value in keyword.items()}
    state: dict[str, _Slot] = {}
    if isinstance(call, torch.jit.ScriptModule):
        builder.not_covered.append(
            f"the parameters of {title} were held constant, as torch can't replace those of a "
            "compiled module; check the module that it was made of"
        )
    if module is not None:
        state = builder.add_state(module)
        # Copies of a module have lost them.
        owner = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
        if isinstance(owner, nn.Module):
            for name, parameter in owner.named_parameters():
                builder.note_hooks(name, parameter)
    builder.require_variables(title, module=module)

    parameter_swap = None if module is None else ParameterSwap(module)

    def run(given: Given) -> object:
        args = tuple(template(given) for template in arguments)
        named = {name: template(given) for name, template in keywords.items()}
        if parameter_swap is None:
            return call(*args, **named)
        tensors = {name: slot(given) for name, slot in state.items()}
        return parameter_swap.call(tensors, args, named)

    return PureFunction(
        title=title,
        call=run,
        variables=tuple(builder.variables),
        constants=tuple(builder.constants),
        not_covered=(*builder.not_covered, *builder.shared_storage()),
        seed=options.seed,
        cast=options.cast,
        parameter_swap=parameter_swap,
        generators=OwnGenerators.reached_from(target, module, positional, keyword),
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a tensor of an argument comes from: the variable or the constant of this index."""

    index: int
    varies: bool

    def __call__(self, given: Given) -> torch.Tensor:
        return given.values[self.index] if self.varies else given.constants[self.index]


class _Builder:
    """Collects variables and remembers how to put them back into the arguments."""

    def __init__(self, options: CheckOptions) -> None:
        self.variables: list[Variable] = []
        self.constants: list[Constant] = []
        self.not_covered: list[str] = []
        self._originals: list[tuple[str, torch.Tensor]] = []
        self._seen: list[str] = []
        self._options = options
        self._floating: list[str] = []
        self._unsuited: list[str] = []

    def add(self, argument: object, name: str) -> Callable[[Given], object]:
        """Return a function that makes the argument anew from the variables' values."""
        leaves = list(leaves_with_paths(argument, name))
        if not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves):
            return lambda _given: argument
        slots = [
            self._slot(leaf, path, "input") if isinstance(leaf, torch.Tensor) else None
            for path, leaf in leaves
        ]

        def rebuild(given: Given) -> object:
            remaining = iter(slots)

            def fill(leaf: object) -> object:
                slot = next(remaining)
                return leaf if slot is None else slot(given)

            return replace_leaves(argument, fill)

        return rebuild

    def add_state(self, module: nn.Module) -> dict[str, _Slot]:
        """Return where every parameter and buffer of the module comes from."""
        prefix = "owner." if isinstance(module, (BoundMethod, ReadParameters)) else ""
        taken = {variable.name for variable in self.variables}
        slots: dict[str, _Slot] = {}
        by_design = documented_exceptions(module)
        for full_name, parameter in module.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise UsageError(
                    f"parameter {full_name} has no shape yet; call the lazy module once before "
                    "its gradients are checked"
                )
            name = full_name.removeprefix(prefix)
            shown = f"self.{name}" if name in taken else name
            departure = by_design.get(id(parameter))
            if not self._options.parameters:
                slots[full_name] = self._constant(shown, self._copy(parameter), "parameter")
            elif isinstance(departure, str):
                self.not_covered.append(
                    f"the gradient of `{shown}` is by design not the derivative ({departure}); it "
                    "was held constant"
                )
                slots[full_name] = self._constant(shown, self._copy(parameter), "parameter")
            else:
                slots[full_name] = self._slot(parameter, shown, "parameter")
                if departure is not None and slots[full_name].varies:
                    self._leave_out_row(departure)
        if slots and not self._options.parameters:
            self.not_covered.append("the module's parameters were held constant (parameters=False)")
        for full_name, buffer in module.named_buffers():
            slots[full_name] = self._constant(full_name, self._copy(buffer), "buffer")
        return slots

    def _leave_out_row(self, row: int) -> None:
        """Never move one row of the variable that was added last."""
        variable = self.variables[-1]
        mask = torch.zeros_like(variable.value, dtype=torch.bool)
        mask[row] = True
        fixed = mask if variable.fixed is None else variable.fixed | mask
        self.variables[-1] = replace(variable, fixed=fixed)
        self.not_covered.append(
            f"row {row} of `{variable.name}` gets no gradient by design (padding_idx); it was not "
            "moved"
        )

    def note_hooks(self, name: str, tensor: torch.Tensor) -> None:
        """Say that hooks on the gradient of the user's tensor don't run on our copies."""
        if _torch_compat.has_gradient_hooks(tensor):
            self.not_covered.append(
                f"the hooks on the gradient of `{name}` were not run: what backward gives was "
                "checked, not what they make of it"
            )

    def _constant(
        self, name: str, value: torch.Tensor, kind: Literal["input", "parameter", "buffer"]
    ) -> _Slot:
        self.constants.append(Constant(name, value, kind))
        return _Slot(len(self.constants) - 1, varies=False)

    def require_variables(self, title: str, *, module: nn.Module | None) -> None:
        """Raise a UsageError that says why, if there is nothing to check."""
        if self.variables:
            return
        if self._floating and not self._unsuited:
            names = ", ".join(f"`{name}`" for name in self._floating[:5])
            raise UsageError(
                f"no input of {title} requires grad, so there is no gradient to check; set "
                f"requires_grad_() on the inputs to check ({names})"
            )
        kind = "inputs" if module is None else "inputs or parameters"
        details = f": {'; '.join(self.not_covered)}" if self.not_covered else ""
        seen = ", ".join(self._seen[:5]) or "no tensors"
        raise UsageError(
            f"{title} has no {kind} of floating-point or complex type to check{details}; "
            f"got {seen}. Give a floating-point tensor that requires grad, such as "
            "torch.randn(4, 3, requires_grad=True)"
        )

    def shared_storage(self) -> list[str]:
        """Say which inputs share memory: they are checked as if they did not."""
        lines = []
        for index, (name, tensor) in enumerate(self._originals):
            for other_name, other in self._originals[:index]:
                if other is tensor:
                    how = "are the same tensor"
                elif _share_memory(tensor, other):
                    how = "share memory"
                else:
                    continue
                lines.append(
                    f"`{other_name}` and `{name}` {how}; they were checked as two independent "
                    "tensors, each gradient as that with respect to one of them alone"
                )
        return lines

    def _slot(self, tensor: torch.Tensor, name: str, kind: Literal["input", "parameter"]) -> _Slot:
        if tensor.is_meta:
            raise UsageError(
                f"{kind} `{name}` is on the meta device, where tensors have no values; give it "
                "values, such as by to_empty(device='cpu') and initialising it"
            )
        require_memory(tensor, f"{kind} `{name}`")
        reason = _why_constant(tensor, cast=self._options.cast)
        if reason is None:
            self._add_variable(tensor, name, kind)
            return _Slot(len(self.variables) - 1, varies=True)
        self._seen.append(f"`{name}` of type {short_name(tensor.dtype)}")
        if tensor.is_floating_point() or tensor.is_complex():
            self.not_covered.append(f"{kind} `{name}` {reason} and was held constant")
            if tensor.requires_grad:
                self._unsuited.append(name)
            else:
                self._floating.append(name)
        return self._constant(name, self._copy(tensor), kind)

    def _add_variable(
        self, tensor: torch.Tensor, name: str, kind: Literal["input", "parameter"]
    ) -> None:
        try:
            value, representation = represented(self._cast(tensor.detach()))
            fixed = _non_finite(value, name)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"{kind} `{name}` is a {type(tensor).__name__}, whose values can't be read and "
                f"moved one by one ({one_line(error)}); check a function of the plain tensors "
                "that it is made of"
            ) from error
        variable = Variable(name, value, kind, representation, fixed)
        self.variables.append(variable)
        if kind == "input":
            self._originals.append((name, tensor))
            self.note_hooks(name, tensor)
        if representation.layout is not torch.strided:
            self.not_covered.append(
                f"`{name}` is {short_name(representation.layout)}: its specified values were moved "
                "and its gradient was compared there (masked semantics); elsewhere it is not "
                "covered"
            )
        elif overlaps_itself(tensor):
            self.not_covered.append(
                f"`{name}` overlaps itself in memory (expanded); a dense copy of it was checked"
            )
        if variable.fixed is not None:
            count = int(variable.fixed.sum())
            self.not_covered.append(
                f"{count} of {value.numel()} values of `{name}` {'is' if count == 1 else 'are'} "
                "not finite; what is not finite was not moved, and its gradient is not covered"
            )

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._cast(tensor.detach().clone())

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        kind = self._options.cast
        if kind is None:
            return tensor
        if tensor.is_complex():
            return tensor.to(_COMPLEX[kind])
        return tensor.to(kind) if tensor.is_floating_point() else tensor


def _why_constant(tensor: torch.Tensor, *, cast: torch.dtype | None) -> str | None:
    if not tensor.requires_grad:
        return "does not require grad"
    if tensor.is_nested:
        return "is a nested tensor, which can't be checked,"
    if tensor.layout not in LAYOUTS:
        return f"is {short_name(tensor.layout)}, which can't be checked,"
    if (cast or tensor.dtype.to_real()) not in _CHECKED:
        return f"is {short_name(tensor.dtype)}, which can't be checked,"
    return None


def _non_finite(value: torch.Tensor, name: str) -> torch.Tensor | None:
    finite = torch.isfinite(value)
    if bool(finite.all()):
        return None
    if not bool(finite.any()):
        raise UsageError(
            f"`{name}` holds no finite value (all {value.numel()} are NaN or Inf); no derivative "
            "can be measured there. Give finite inputs"
        )
    return ~finite


def _share_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether an entry of one tensor lies in the same place as an entry of the other.

    Chunks of one storage that do not overlap, such as those of ``x.chunk(2)``, share none.
    """
    if torch.strided not in (first.layout, second.layout) or not first.numel() * second.numel():
        return False
    one, two = _torch_compat.storage_key(first), _torch_compat.storage_key(second)
    if one is None or one != two:
        return False
    (start, stop), (begin, end) = _span(first), _span(second)
    if first.dtype == second.dtype and (stop <= begin or end <= start):
        return False
    if first.dtype != second.dtype:
        return True
    taken = torch.zeros(max(stop, end), dtype=torch.bool)
    taken.as_strided(first.size(), first.stride(), first.storage_offset()).fill_(True)
    return bool(taken.as_strided(second.size(), second.stride(), second.storage_offset()).any())


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = int(tensor.storage_offset())
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    return start, start + sum((size - 1) * stride for size, stride in pairs) + 1
