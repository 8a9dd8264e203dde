"""Backwards that fill nothing but parameters which no optimizer owns and nothing changes.

So it is with a discriminator whose optimizer was given the generator's parameters. Where a gradient
for some other tensor is wanted, as for the pixels of an attack, the backward is not in vain.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint, same_content
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = ["WastedBackwards"]

_STEPS_TO_BE_SURE = 4
"""Steps in which a line fills just the same parameters in vain; of those looked at, which are 0, 1,
2, 4, 8 and so on, so that an optimizer made after the first steps is seen."""


class _Line:
    """A line with such a backward.

    Attributes:
        parameters: what it fills, each with its contents when it was seen first.
        steps: in how many of the steps that were looked at it has filled just these.
        step: the last of them.
        names: how the parameters are called, once that is certain which backward it is.
    """

    __slots__ = ("names", "parameters", "step", "steps")

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters: list[tuple[weakref.ref[Tensor], Fingerprint | None]] = [
            (weakref.ref(parameter), fingerprint(parameter)) for parameter in parameters
        ]
        self.steps = 0
        self.step = -1
        self.names: tuple[str, ...] | None = None

    def living(self) -> list[Tensor]:
        """Return those of the parameters that are still there."""
        return [each for reference, _ in self.parameters if (each := reference()) is not None]

    def is_untouched(self, parameters: Sequence[Tensor]) -> bool:
        """Return whether these are the same parameters with the same contents."""
        return len(parameters) == len(self.parameters) and all(
            reference() is parameter and content is not None and same_content(content, parameter)
            for parameter, (reference, content) in zip(parameters, self.parameters, strict=True)
        )


class WastedBackwards:
    """Follows what the backward of each line fills.

    Args:
        names_of: returns how parameters of modules are called, and nothing where any of them is no
            module's or an optimizer's that nobody has seen.
    """

    def __init__(self, names_of: Callable[[Sequence[Tensor]], tuple[str, ...]]) -> None:
        self._names_of = names_of
        # None for a line that does something else as well.
        self._lines: dict[CallSite | None, _Line | None] = {}
        self._asked: dict[int, weakref.ref[Tensor]] = {}

    def ask(self, leaves: Iterable[Tensor]) -> None:
        """Note leaves of a graph that ``autograd.grad`` goes through: it has returned theirs."""
        for leaf in leaves:
            if not isinstance(leaf, nn.Parameter):
                self._asked[id(leaf)] = weakref.ref(leaf)

    def begin(
        self, site: CallSite | None, leaves: Sequence[Tensor], owned: set[int], step: int
    ) -> None:
        """Note the leaves that a backward is about to fill."""
        line = self._lines.get(site)
        if site in self._lines and line is None:
            return
        parameters = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
        in_vain = parameters and all(id(each) not in owned for each in parameters)
        if not in_vain or any(self._is_wanted(leaf) for leaf in leaves):
            self._lines[site] = None
            return
        if line is None:
            line = self._lines[site] = _Line(parameters)
        elif not line.is_untouched(parameters):
            self._lines[site] = None
            return
        if step == line.step:
            return
        line.step = step
        line.steps += 1
        if line.steps == _STEPS_TO_BE_SURE:
            line.names = self._names_of(parameters)

    def _is_wanted(self, leaf: Tensor) -> bool:
        if isinstance(leaf, nn.Parameter):
            return False
        asked = self._asked.get(id(leaf))
        return asked is None or asked() is not leaf

    def take_up(self, owned: frozenset[int]) -> None:
        """Take back what was said of parameters that an optimizer owns from now on."""
        for site, line in self._lines.items():
            if line is not None and any(id(each) in owned for each in line.living()):
                self._lines[site] = None

    def leave_out(self, told: set[int]) -> None:
        """Say nothing of a line that fills no more than these, which are told of otherwise."""
        for site, line in self._lines.items():
            if line is not None and told.issuperset(map(id, line.living())):
                self._lines[site] = None

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return [
            _finding(site, len(line.parameters), line.names)
            for site, line in self._lines.items()
            if line is not None and line.names
        ]


def _finding(site: CallSite | None, count: int, names: tuple[str, ...]) -> Finding:
    number = "1 parameter" if count == 1 else f"{count} parameters"
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"this backward() gives gradients to {number} ({listed(names)}) and to nothing else, and "
        "no optimizer owns any of them and nothing changes them, so that it trains nothing; "
        "expected an optimizer to own them",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(site),
        hint="give their optimizer the parameters of this model",
        evidence={"count": count, "names": list(names)},
    )
