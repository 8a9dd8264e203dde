"""Random projections of the gradients of a function: a few numbers that change when they change.

Each tensor is projected on random directions of signs, drawn in float64 from the seed and the
number of its elements alone, so that the same gradient has the same projections in every
floating-point type and under every name. The norm of a projection is that of the tensor, on
average (Johnson and Lindenstrauss 1984).

The rounding noise is measured, not assumed: the same gradients are computed again at parameters
and inputs that are moved by one rounding error of their type, and the projections' greatest change
is the noise. It contains what the conditioning of the function makes of rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.errors import UsageError
from pytest_gradcheck_suite.snapshot_file import PROJECTIONS, Fingerprint, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["take_snapshot"]

_MOVES = 4


def take_snapshot(
    function: Any, inputs: Any, *, kwargs: Mapping[str, Any] | None, seed: int
) -> Snapshot:
    """Return the fingerprints of outputs and gradients, and of where they were taken.

    Nothing of the user's changes: parameters and buffers are copied, ``.grad`` stays, and random
    number generators are afterwards as they were.

    Raises:
        UsageError: the function isn't callable, or nothing has a gradient.
    """
    if not callable(function):
        raise UsageError(
            f"gradient_check.snapshot: expected a module or a function, got {function!r}"
        )
    if type(seed) is not int:  # True is none either
        raise UsageError(f"gradient_check.snapshot: seed must be a whole number, got {seed!r}")
    subject = _Subject(function, inputs, dict(kwargs or {}), seed)
    if not subject.variables:
        raise UsageError(
            "gradient_check.snapshot: nothing has a gradient: no parameter and no floating-point "
            "input requires grad; give torch.randn(4, 3, requires_grad=True)"
        )
    for name, variable in subject.variables.items():
        if variable.is_meta:
            raise UsageError(
                f"gradient_check.snapshot: {name} is on the meta device, where tensors have no "
                "values; make it on the CPU"
            )
    outputs, gradients = subject.run(moved_by=None)
    noise: dict[str, float] = {}
    output_noise: dict[str, float] = {}
    for move in range(_MOVES):
        moved_outputs, moved = subject.run(moved_by=move)
        for name, values in gradients.items():
            noise[name] = max(noise.get(name, 0.0), _distance(values, moved[name]))
        for name, values in outputs.items():
            seen = _distance(values, moved_outputs.get(name))
            output_noise[name] = max(output_noise.get(name, 0.0), seen)
    return Snapshot(
        seed=seed,
        eps=subject.eps,
        draws=subject.draws,
        values={name: subject.fingerprint(t) for name, t in subject.variables.items()},
        outputs={
            name: subject.fingerprint(t, noise=output_noise[name]) for name, t in subject.seen()
        },
        gradients={
            name: Fingerprint(subject.shapes[name], values, noise[name], subject.norms[name])
            for name, values in gradients.items()
        },
    )


def _distance(left: tuple[float, ...], right: tuple[float, ...] | None) -> float:
    if right is None:  # a function that returned something else this time
        return 0.0
    return max((abs(a - b) for a, b in zip(left, right, strict=True)), default=0.0)


class _Subject:
    """A function with its variables: parameters and inputs that require grad."""

    def __init__(self, function: Any, inputs: Any, kwargs: dict[str, Any], seed: int) -> None:
        self.function = function
        self.seed = seed
        self.draws: bool = False
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.norms: dict[str, float] = {}
        self._outputs: list[tuple[str, torch.Tensor]] = []
        self._directions: dict[int, torch.Tensor] = {}
        if isinstance(inputs, dict):
            self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {**inputs, **kwargs})
        elif isinstance(inputs, (tuple, list)):
            self.arguments = (tuple(inputs), kwargs)
        else:
            self.arguments = ((inputs,), kwargs)
        self.module = function if isinstance(function, torch.nn.Module) else None
        self.variables: dict[str, torch.Tensor] = {}
        if self.module is not None:
            self.variables.update(
                (name, p) for name, p in self.module.named_parameters() if p.requires_grad
            )
        for name, tensor in _tensors(self.arguments[0], "inputs"):
            self._add(name, tensor)
        for name, tensor in _tensors(self.arguments[1], "inputs"):
            self._add(name, tensor)
        floats = [t.dtype for t in self.variables.values()]
        self.eps = max((torch.finfo(dtype).eps for dtype in floats), default=0.0)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.requires_grad:
            self.variables[name] = tensor

    def run(
        self, *, moved_by: int | None
    ) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[float, ...]]]:
        """Return the projections of outputs and of gradients, ``moved_by`` rounding errors."""
        variables = {
            name: _moved(tensor.detach(), moved_by, index).requires_grad_()
            for index, (name, tensor) in enumerate(self.variables.items())
        }
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(self.seed)
            before = torch.get_rng_state()
            result = self._call(variables)
            self.draws |= not torch.equal(before, torch.get_rng_state())
        outputs = [
            (name, t)
            for name, t in _tensors(result, "output")
            if t.is_floating_point() or t.is_complex()
        ]
        if moved_by is None:
            self._outputs = outputs
        roots = [(t, self._cotangent(t, index)) for index, (_, t) in enumerate(outputs)]
        roots = [(t, cotangent) for t, cotangent in roots if t.requires_grad]
        if not roots:
            inference = torch.is_inference_mode_enabled()
            raise UsageError(
                "gradient_check.snapshot: no output requires grad, so there is no gradient to keep"
                + ("; call it outside of inference_mode" if inference else "")
            )
        taken: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            [t for t, _ in roots],
            list(variables.values()),
            [cotangent for _, cotangent in roots],
            allow_unused=True,
        )
        gradients = {}
        for (name, variable), gradient in zip(variables.items(), taken, strict=True):
            whole = torch.zeros_like(variable) if gradient is None else gradient
            if moved_by is None:
                self.shapes[name] = tuple(whole.shape)
                self.norms[name] = _flat(whole).norm().item()
            gradients[name] = self._projections(whole)
        return {name: self._projections(t) for name, t in outputs}, gradients

    def seen(self) -> list[tuple[str, torch.Tensor]]:
        """Return the outputs of the run that was not moved."""
        return self._outputs

    def fingerprint(self, tensor: torch.Tensor, noise: float = 0.0) -> Fingerprint:
        """Return the fingerprint of a tensor."""
        flat = _flat(tensor)
        return Fingerprint(
            tuple(tensor.shape), self._projections(tensor), noise, flat.norm().item()
        )

    def _call(self, variables: dict[str, torch.Tensor]) -> Any:
        arguments = _replaced(self.arguments[0], "inputs", variables)
        kwargs = _replaced(self.arguments[1], "inputs", variables)
        if self.module is None:
            return self.function(*arguments, **kwargs)
        state = {name: b.detach().clone() for name, b in self.module.named_buffers()}
        names = dict(self.module.named_parameters())
        state.update((name, tensor) for name, tensor in variables.items() if name in names)
        return torch.func.functional_call(self.module, state, arguments, kwargs)

    def _cotangent(self, output: torch.Tensor, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1009 + index + 1)
        real = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        return real.to(device=output.device, dtype=output.dtype)

    def _projections(self, tensor: torch.Tensor) -> tuple[float, ...]:
        flat = _flat(tensor)
        number = flat.numel()
        if number not in self._directions:
            generator = torch.Generator().manual_seed(self.seed * 7919 + number)
            signs = torch.randint(0, 2, (PROJECTIONS, number), generator=generator)
            self._directions[number] = signs.to(torch.float64).mul_(2).sub_(1)
        return tuple((self._directions[number] @ flat).tolist())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.detach()
    if whole.is_complex():
        whole = torch.view_as_real(whole.resolve_conj())
    if whole.layout != torch.strided:
        whole = whole.to_dense()
    return whole.to(device="cpu", dtype=torch.float64).reshape(-1)


def _moved(tensor: torch.Tensor, move: int | None, index: int) -> torch.Tensor:
    if move is None:
        return tensor.clone()
    generator = torch.Generator().manual_seed(move * 65_537 + index)
    by = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
    by = by.to(tensor.device).mul_(torch.finfo(tensor.dtype).eps).add_(1)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return (tensor.to(wide) * by).to(tensor.dtype)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}[{index}]")


def _replaced(value: Any, name: str, variables: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return variables.get(name, value)
    if isinstance(value, dict):
        return {key: _replaced(item, f"{name}[{key!r}]", variables) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [_replaced(v, f"{name}[{i}]", variables) for i, v in enumerate(value)]
        make: Callable[[Any], Any] = type(value)
        return make(*items) if hasattr(value, "_fields") else make(items)
    return value
