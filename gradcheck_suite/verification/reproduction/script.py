"""Write a script that shows what a check has found, and make sure that it does."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite._runtime.watchers import unwatched
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Finding
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.diagnosis.contract_messages import blamed
from gradcheck_suite.verification.options import LAYOUTS, CheckOptions
from gradcheck_suite.verification.progress import Deadline
from gradcheck_suite.verification.reproduction import demonstrations
from gradcheck_suite.verification.reproduction.sources import Sources
from gradcheck_suite.verification.stage import Checker
from gradcheck_suite.verification.stages.input_variations.memory_layouts import lay_out
from gradcheck_suite.verification.target.arguments import (
    name_arguments,
    resolve_target,
)
from gradcheck_suite.verification.target.call_recorder import CallRecorder
from gradcheck_suite.verification.target.call_replay import replayable
from gradcheck_suite.verification.target.random_state import RandomState, preserved_randomness
from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.verification.target.call_recorder import Call

__all__ = ["FailingCheck"]

_SECONDS = 20.0
"""How long inputs are made smaller. A bound on cost; what was reached by then is written."""
_MOST_CALLS = 8
"""How many calls of the Function in question are tried by themselves. A bound on cost."""
_ALIKE = frozenset(["GCS508", "GCS601", "GCS604", "GCS609"])
"""Codes of a first-order gradient that differs from the numeric one: which of them it is depends on
the inputs."""
_SHOWN_BY = {
    "GCS602": demonstrations.SECOND_ORDER,
    "GCS603": demonstrations.REPEATED,
    "GCS610": demonstrations.LINEAR,
}
_STEPS = {torch.float64: (1e-5, 1e-5), torch.float32: (1e-2, 3e-2)}
"""Of each type, the step of central differences and the relative difference that is allowed: with
the third root of eps as the step, rounding and truncation are each some eps ** (2/3), 4e-11 in
float64 and 2e-5 in float32; third derivatives and sums get a thousand times and more of that."""


@dataclass(frozen=True, slots=True)
class FailingCheck:
    """A check that found something, kept to be made again.

    Attributes:
        target: what was checked.
        args: its positional arguments.
        kwargs: its keyword arguments.
        options: how it was checked.
        finding: what a script is to show.
        check: checks again.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: CheckOptions
    finding: Finding
    check: Checker

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # A report may be copied and sent; what was checked may not.
        return type(None), ()

    def script(self) -> str:
        """Return the text of a script that exits with 1 while the mistake is there.

        Raises:
            UsageError: no such script can be written; the message says why and what to do.
        """
        refusal: UsageError | None = None
        with unwatched(), torch.inference_mode(mode=False), preserved_randomness():
            for candidate in (*self._functions(), self):
                try:
                    return candidate.written()
                except UsageError as error:  # noqa: PERF203 - a few
                    refusal = error
        assert refusal is not None
        raise refusal

    def _functions(self) -> Iterator[FailingCheck]:
        """Yield the calls of the custom Function in question, each as a check of its own."""
        name = blamed(self.finding)
        if name is None or isinstance(self.target, type):
            return
        calls: list[tuple[Any, tuple[Any, ...]]] = []

        def visit(call: Call) -> None:
            if call.target.__qualname__ == name and len(calls) < _MOST_CALLS:
                again = replayable(call, RandomState.capture())
                if again.values:
                    calls.append((again.target, again.args))

        with torch.enable_grad(), contextlib.suppress(Exception):
            recorder = CallRecorder(None, frozenset({"function"}), visit)
            args, kwargs = self.copied((self.args, dict(self.kwargs)))
            with recorder.recording():
                self.target(*args, **kwargs)
        for function, given in calls:
            found = replace(self, target=function, args=given, kwargs={})
            if found.fails((given, {})):
                yield found

    def copied(self, tree: Any) -> Any:
        """Copy arguments, in the type that the options ask for."""

        def copy(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            made = leaf.detach()
            if self.options.cast is not None and made.is_floating_point():
                made = made.to(self.options.cast)
            # A copy has no gaps: how such a tensor lies in memory may be what matters.
            dense = not made.numel() or made.untyped_storage().nbytes() == made.nbytes
            return (made.clone() if dense else made).requires_grad_(leaf.requires_grad)

        return replace_leaves(tree, copy)

    def fails(self, tree: Any) -> bool:
        """Return whether the target shows the same mistake for other arguments, as they are."""
        args, kwargs = tree
        options = replace(
            self.options,
            variations=frozenset(),
            order=2 if self.finding.code == "GCS602" else 1,
            full=False,
            time_limit=None,
            skip_outputs=frozenset(),
            # Only the outcome counts: no single entries are looked for.
            examined=self.options.examined | {FailingCheck},
        )
        try:
            report = self.check(self.target, self.copied(args), self.copied(kwargs), options)
        except Exception:  # noqa: BLE001 - the user's function may refuse other inputs
            return False
        return any(self._is_same(one) for one in report.at_least(Severity.WARNING))

    def _is_same(self, found: Finding) -> bool:
        wanted, code = self.finding, found.code
        same = code == wanted.code or {code, wanted.code} <= _ALIKE
        return same and (blamed(wanted) is None or blamed(found) == blamed(wanted))

    def written(self) -> str:
        """Make the arguments small and write the script."""
        tree: Any = (self.args, dict(self.kwargs))
        double = replace(self, options=replace(self.options, cast=torch.float64))
        known = double if double.fails(tree) else self
        tree = known.copied(tree)
        if not known.fails(tree):
            kind = str(self.finding.evidence.get("variation", ""))
            other = next((one for one in varied(tree, kind) if known.fails(one)), None)
            tree = tree if other is None else known.copied(other)
        if known.fails(tree):
            tree = shrunk(tree, known.fails, Deadline.after(_SECONDS))
        return known.text(tree)

    def text(self, tree: Any) -> str:
        """Write the script for these arguments, with plain torch if that shows the mistake."""
        refused = ""
        for shown in (_SHOWN_BY.get(self.finding.code, demonstrations.GRADIENT), None):
            text = _Script(self, tree, shown).text()
            refused = _refusal(text)
            if not refused:
                return text
        raise UsageError(
            f"a script with the source and the inputs of {_title(self.target)} does not show "
            f"{self.finding.code} again ({refused}): it depends on something else, such as state "
            "that is kept between calls; write it by hand, from a new process"
        )


@dataclass(frozen=True, slots=True)
class _Script:
    """One script: what is checked, with which arguments, and how it is shown."""

    known: FailingCheck
    tree: Any
    demonstration: str | None

    def text(self) -> str:
        """Put the script together."""
        sources = Sources()
        setup = self._setup(sources)
        step, tolerance = _STEPS.get(self._dtype(), _STEPS[torch.float32])
        shown = (demonstrations.COMMON, self.demonstration)
        if self.demonstration is None:
            shown = (f"CODE = {self.known.finding.code!r}", demonstrations.WITH_SUITE)
        imports = dict.fromkeys(("import itertools", "import sys", "", "import torch"))
        parts = [
            _docstring(self.known.finding),
            "\n".join({**imports, **sources.imports}),
            f"SEED = {self.known.options.seed}\nSTEP, TOLERANCE = {step:g}, {tolerance:g}",
            *sources.blocks,
            setup,
            *(one.strip() for one in shown if one is not None),
            'if __name__ == "__main__":\n    sys.exit(main())',
        ]
        return "\n\n\n".join(parts) + "\n"

    def _setup(self, sources: Sources) -> str:
        """Return a function that makes what is called, its arguments and what needs a gradient."""
        title = _title(self.known.target)
        lines, target = self._target(sources)
        leaves: dict[str, str] = {}
        for name, leaf in self._leaves():
            variable = sources.variable(name)
            lines.append(f"{variable} = {sources.literal(leaf, f'`{name}` of {title}')}")
            sources.stands_for(leaf, variable)
            leaves[name] = variable
        module = self._module()
        for name, parameter in () if module is None else module.named_parameters():
            if parameter.requires_grad:
                leaves[name if name not in leaves else f"self.{name}"] = f"module.{name}"
        args, kwargs = self.tree
        given = [
            sources.literal(one, f"input {number} of {title}") for number, one in enumerate(args)
        ]
        named = [f"{key!r}: {sources.literal(one, f'`{key}`')}" for key, one in kwargs.items()]
        wanted = [f"{name!r}: {variable}" for name, variable in leaves.items()]
        lines += [
            f"args = ({''.join(f'{one}, ' for one in given)})",
            f"return {target}, args, {{{', '.join(named)}}}, {{{', '.join(wanted)}}}",
        ]
        return f"def setup():\n{_indented(lines)}"

    def _module(self) -> nn.Module | None:
        target = self.known.target
        owner = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
        cast = self.known.options.cast
        if not isinstance(owner, nn.Module) or cast is None:
            return owner if isinstance(owner, nn.Module) else None
        return copy.deepcopy(owner).to(cast)

    def _target(self, sources: Sources) -> tuple[list[str], str]:
        """Return the statements that make what is called, and the expression for it."""
        target, module = self.known.target, self._module()
        if module is not None:
            name = "module" if isinstance(target, nn.Module) else f"module.{target.__name__}"
            return sources.module(module, "module"), name
        owner = getattr(target, "__self__", None)
        function = owner if isinstance(owner, type) else target
        if isinstance(function, type) and issubclass(function, torch.autograd.Function):
            return [], f"{sources.name_of(function)}.apply"
        return [], sources.literal(target, f"the target, {_title(target)},")

    def _leaves(self) -> list[tuple[str, torch.Tensor]]:
        """List the tensors among the arguments that need a gradient, by name."""
        args, kwargs = self.tree
        signature_of, title = resolve_target(self.known.target)[2:]
        named = name_arguments(signature_of, tuple(args), dict(kwargs), title)
        return [
            (path, leaf)
            for name, value in (*zip(named, args, strict=True), *kwargs.items())
            for path, leaf in leaves_with_paths(value, name)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]

    def _dtype(self) -> torch.dtype:
        kinds = {leaf.dtype.to_real() for _, leaf in self._leaves()}
        module = self._module()
        for one in () if module is None else module.parameters():
            kinds.add(one.dtype.to_real())
        return torch.float64 if kinds <= {torch.float64} else torch.float32


def _docstring(finding: Finding) -> str:
    message = finding.message.replace("\\", "/").replace('"""', "'''")
    return (
        f'"""Shows what gradcheck-suite found: {finding.code} {finding.rule}.\n\n{message}\n\n'
        'It exits with status 1 while that is so, and with 0 once it is mended.\n"""\n\n'
        "from __future__ import annotations"
    )


def _indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _title(target: Any) -> str:
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return f"`{name}`"


def _refusal(text: str) -> str:
    """Run a script and return why it does not show the mistake; empty if it does."""
    namespace: dict[str, Any] = {"__name__": "reproduction"}
    heard = io.StringIO()
    try:
        with contextlib.redirect_stdout(heard), torch.enable_grad():
            exec(compile(text, "<reproduction>", "exec"), namespace)
            return "" if namespace["main"]() else "it finds nothing wrong"
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises without its process
        return f"it raises {one_line(error)}"


_SIZES = (1, 2, 3, 5, 7, 17, 67, 257)
"""What the first dimension is made, smallest first."""
_SCALES = (1.0, -1.0, 4.0, 20.0, 1e-2, 1e-4, 1e-8)
"""What drawn values are multiplied by, plainest first: those of the variation "magnitudes"."""


def varied(tree: Any, kind: str) -> Iterator[Any]:
    """Yield arguments that may show plainly what a variation of the inputs has shown.

    Args:
        tree: arguments for which the gradient is right.
        kind: the name of the variation, as the evidence has it.
    """
    if kind in LAYOUTS:
        yield _changed(tree, lambda leaf: lay_out(leaf, kind), every=True)
        return
    if kind == "alone":
        for chosen in [one for one in _tensors(tree) if one.requires_grad]:
            yield replace_leaves(
                tree,
                lambda leaf, chosen=chosen: (  # type: ignore[misc]
                    leaf.detach() if isinstance(leaf, torch.Tensor) and leaf is not chosen else leaf
                ),
            )
        return
    if kind == "sizes":
        for first in dict.fromkeys(one.shape[0] for one in _tensors(tree) if one.dim()):
            for size in (*_SIZES, first + 1, first - 1):
                yield _changed(
                    tree,
                    functools.partial(_resized, first=first, size=size),
                    every=True,
                )
        return
    if kind == "indices":
        yield _changed(
            tree, lambda leaf: leaf if leaf.is_floating_point() else leaf.clamp(max=0), every=True
        )
        return
    generator = torch.Generator().manual_seed(1)
    for scale in _SCALES:
        yield _changed(tree, functools.partial(_drawn, generator=generator, scale=scale))


def _changed(
    tree: Any, change: Callable[[torch.Tensor], torch.Tensor], *, every: bool = False
) -> Any:
    """Change the tensors that need a gradient, or every one, and keep who needs one."""

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not (every or leaf.requires_grad):
            return leaf
        made = change(leaf.detach()).detach()
        return made.requires_grad_() if leaf.requires_grad else made

    return replace_leaves(tree, fill)


def _resized(leaf: torch.Tensor, first: int, size: int) -> torch.Tensor:
    for dim, known in enumerate(leaf.shape):
        if known == first and size > 0:
            leaf = leaf.index_select(dim, torch.arange(size) % known)
            break
    return leaf


def _drawn(leaf: torch.Tensor, generator: torch.Generator, scale: float) -> torch.Tensor:
    return torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype) * scale


def shrunk(tree: Any, fails: Callable[[Any], bool], deadline: Deadline) -> Any:
    """Return arguments as plain as still fail: sizes halved, gradients dropped, values rounded.

    Args:
        tree: arguments, which fail.
        fails: whether other arguments show the same mistake.
        deadline: when to stop.
    """
    for simpler in (_smaller, _fewer, _rounder):
        found = True
        while found and not deadline.passed:
            found = False
            for candidate in simpler(tree):
                if deadline.passed:
                    break
                if fails(candidate):
                    tree, found = candidate, simpler is not _rounder
                    break
    return tree


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves_with_paths(tree, "") if isinstance(leaf, torch.Tensor)]


def _smaller(tree: Any) -> Iterator[Any]:
    """Yield arguments where a size, wherever it occurs, is one, a half, or one less."""
    sizes = sorted({size for tensor in _tensors(tree) for size in tensor.shape if size > 1})
    for size in reversed(sizes):
        for less in dict.fromkeys((1, size // 2, size - 1)):
            yield replace_leaves(tree, functools.partial(_cut, size=size, less=less))
    for number, tensor in enumerate(_tensors(tree)):
        for dim, size in enumerate(tensor.shape):
            if size > 1:
                for less in dict.fromkeys((1, size // 2)):
                    yield _with(tree, number, _narrowed(tensor, dim, less))


def _cut(leaf: Any, size: int, less: int) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    for dim, known in enumerate(leaf.shape):
        if known == size:
            leaf = _narrowed(leaf, dim, less)
    if not (leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool):
        # Labels and indices may count what became fewer.
        leaf = leaf % less if int(leaf.max() if leaf.numel() else 0) < size else leaf
    return leaf


def _narrowed(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    part = tensor.detach().narrow(dim, 0, size)
    made = torch.empty_like(part)  # keeps the order of dimensions in memory
    return made.copy_(part).requires_grad_(tensor.requires_grad)


def _fewer(tree: Any) -> Iterator[Any]:
    """Yield arguments of which one less needs a gradient."""
    tensors = _tensors(tree)
    needing = [number for number, tensor in enumerate(tensors) if tensor.requires_grad]
    for number in needing if len(needing) > 1 else ():
        yield _with(tree, number, tensors[number].detach())


def _rounder(tree: Any) -> Iterator[Any]:
    """Yield arguments with rounder values, all of them, then one by one, the roundest first."""
    for digits in (0, 1, 2, 3):
        yield replace_leaves(tree, functools.partial(_rounded, digits=digits))


def _rounded(leaf: Any, digits: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    made = torch.empty_like(leaf.detach()).copy_(leaf.detach())
    parts = torch.view_as_real(made) if made.is_complex() else made
    # Adding zero leaves no minus zero.
    parts.copy_(parts.double().round(decimals=digits) + 0.0)
    return made.requires_grad_(leaf.requires_grad)


def _with(tree: Any, number: int, other: torch.Tensor) -> Any:
    """Replace one tensor, counted in order."""
    count = -1

    def fill(leaf: Any) -> Any:
        nonlocal count
        if isinstance(leaf, torch.Tensor):
            count += 1
            return other if count == number else leaf
        return leaf

    return replace_leaves(tree, fill)
