"""Attributes that were set on an optimizer or a parameter, and that nothing reads.

Python lets a program give any object any attribute. What torch itself reads is known: a rate from
the groups of an optimizer and not from ``optimizer.lr``, and ``requires_grad`` by this name alone.
A class of the program's own may read what it likes, so an optimizer is looked at where its class is
one of torch. Flags on modules are GCS409's.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.detectors.leaf_records import next_looked_at
from gradcheck_suite.auditing.events import SessionEnded, StepStarted
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.source_analysis.source import only_line
from gradcheck_suite.findings import Finding, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.optim import Optimizer

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers

__all__ = ["NoEffectDetector"]

_MISSPELT = re.compile(r"(?!requires_grad\b)req\w{1,8}?_?grad\w{0,5}")
"""What people write in place of ``requires_grad``; the linter goes by the same."""


@dataclass(slots=True)
class _Attribute:
    """An attribute that was found, on how many objects, and what would have been right."""

    what: str
    reads: str
    instead: str
    name: str
    objects: set[int] = field(default_factory=set)


class NoEffectDetector:
    """Reports no-effect (GCS318) of attributes."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._found: dict[tuple[str, str], _Attribute] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the first steps, those that are powers of two, and at the end."""
        return {StepStarted: self._begin_step, SessionEnded: self._end}

    def findings(self) -> list[Finding]:
        """Return one finding for each attribute."""
        return [_finding(each) for each in self._found.values()]

    def _begin_step(self, event: StepStarted) -> int | None:
        self._look_at(self._optimizers.known())
        return next_looked_at(event.number)

    def _end(self, _event: SessionEnded) -> None:
        self._look_at(self._optimizers.known())

    def _look_at(self, optimizers: Iterable[Optimizer]) -> None:
        for optimizer in optimizers:
            for name in _settings_on(optimizer):
                kind = type(optimizer).__name__
                self._note(
                    optimizer,
                    _Attribute(
                        f"an attribute `{name}` of {kind}",
                        "each step reads the entry of that name in `param_groups`",
                        f"set it in each group: `group[{name!r}] = ...`",
                        name,
                    ),
                )
            for parameter in parameters_of(optimizer):
                for name in getattr(parameter, "__dict__", ()):
                    if _MISSPELT.fullmatch(name):
                        self._note(parameter, _misspelt("a parameter", name))

    def _note(self, thing: object, attribute: _Attribute) -> None:
        known = self._found.setdefault((attribute.what, attribute.name), attribute)
        known.objects.add(id(thing))


def _settings_on(optimizer: Optimizer) -> Iterator[str]:
    """Yield what an optimizer of torch has beside its groups under the name of an entry of them."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    yield from [name for name in vars(optimizer) if name in optimizer.defaults]


def _misspelt(what: str, name: str) -> _Attribute:
    return _Attribute(
        f"an attribute `{name}` of {what}",
        "torch reads `requires_grad`",
        "write `requires_grad`",
        name,
    )


def _set_at(name: str) -> Location | None:
    """Return the one line of the program that sets this attribute of anything but a ``self``."""
    return only_line(
        f".{name} = ",
        lambda tree: (
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) != "self"
        ),
    )


def _finding(found: _Attribute) -> Finding:
    count = len(found.objects)
    many = f", of {count:,} in all," if count > 1 else ""
    return Finding.of(
        catalogue.NO_EFFECT,
        f"{found.what}{many} was set, which changes nothing: {found.reads}",
        detector="audit",
        location=_set_at(found.name),
        hint=found.instead,
        evidence={"attribute": found.name, "objects": count},
    )
