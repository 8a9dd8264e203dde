"""What a forward does that autograd does not see: writes behind its back, values that it cuts off.

The function is called once more and followed line by line. After each of the user's lines, tensors
that the graph is made of are compared with what they were: one that has other values and the same
node was overwritten without a record, through ``.data``, NumPy, ``no_grad`` or a ``detach()``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from gradcheck_suite._runtime.frames import Owner, definition_line, owner_of_file
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.findings import Location, Related
from gradcheck_suite.verification.diagnosis.function_source import Place, hook_place
from gradcheck_suite.verification.target.graph_walk import reachable
from gradcheck_suite.verification.target.tree import leaves_with_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gradcheck_suite.verification.numerics.evaluation_point import Point
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["Unrecorded", "follow"]

_MOST_ENTRIES = 2_000_000
"""How many entries of tensors are watched. A bound on cost: copies of them are kept."""
_MOST_WORK = 200_000_000
"""How many entries are compared in all. A bound on cost: some tenths of a second."""
_MOST_RELATED = 3
"""How many lines are listed beside the first. Chosen; only the length of a report depends on it."""
_CUTS = frozenset(
    ["detach", "detach_", "item", "numpy", "tolist", "tensor", "__float__", "__int__", "__array__"]
)
"""Functions whose results autograd does not follow back."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """What was seen of one call.

    Attributes:
        definition: the user's function that was entered first.
        writes: the lines that wrote into a tensor of the graph without a record.
        cuts: the lines that took a value out of the graph, each with how.
        hooks: what the hooks of tensors of the graph return for a gradient.
        cut_off: for each cut the variables, by index, that the value depends on.
    """

    definition: Location | None = None
    writes: tuple[Location, ...] = ()
    cuts: tuple[tuple[Location, str], ...] = ()
    hooks: tuple[Location, ...] = ()
    cut_off: tuple[frozenset[int], ...] = ()

    def of(self, variable: int) -> Unrecorded:
        """Return what may be why no path in the graph leads to a variable."""
        kept = [
            (cut, variables)
            for cut, variables in zip(self.cuts, self.cut_off, strict=True)
            if variable in variables
        ]
        return Unrecorded(
            self.definition,
            () if kept else self.writes,
            tuple(cut for cut, _ in kept),
            cut_off=tuple(variables for _, variables in kept),
        )

    @property
    def words(self) -> str:
        """What was seen at the line of ``place``, to follow a message; empty for nothing."""
        if self.hooks:
            return "; a hook returns another gradient there"
        if self.writes:
            return "; a tensor that it is made of is overwritten there, which autograd does not see"
        if len({location for location, _ in self.cuts}) == 1:
            return f"; {self.cuts[0][1]} takes a part of it out of the graph there"
        return ""

    @property
    def place(self) -> Place:
        """The line to look at: a hook, a write, a single cut, or else the function itself."""
        if self.hooks:
            others = self.hooks[1 : 1 + _MOST_RELATED]
            return Place(self.hooks[0], tuple(Related(one, "and there") for one in others))
        if self.writes:
            others = self.writes[1 : 1 + _MOST_RELATED]
            return Place(self.writes[0], tuple(Related(one, "overwritten here") for one in others))
        cuts = dict(self.cuts)
        related = [Related(at, f"{how} takes it out of the graph here") for at, how in cuts.items()]
        if len(cuts) == 1:
            return Place(related[0].location)
        return Place(self.definition, tuple(related[:_MOST_RELATED]))


def follow(subject: PureFunction, point: Point) -> Unrecorded:
    """Call a function once and tell what it does that autograd does not see."""
    follower = _Follower(sys._getframe())  # noqa: SLF001 - documented, and made for this
    before = sys.gettrace()
    try:
        with torch.enable_grad(), follower.mode:
            leaves = subject.leaves(point.values)
            follower.begin(leaves)
            sys.settrace(follower.enter)
            try:
                subject(leaves)
            finally:
                sys.settrace(before)
    except Exception:  # noqa: BLE001 - the user's function ran before; what was seen counts
        pass
    return follower.seen()


@dataclass(slots=True)
class _Watched:
    """A tensor of the graph, with what it was when it was looked at last."""

    tensor: torch.Tensor
    values: torch.Tensor
    node: object
    version: int


@dataclass(slots=True)
class _Follower:
    """Follows the user's lines and the tensors that they make."""

    base: FrameType
    variables: dict[int, torch.Tensor] = field(default_factory=dict)
    definition: Location | None = None
    writes: dict[Location, None] = field(default_factory=dict)
    cuts: dict[tuple[Location, str], set[int]] = field(default_factory=dict)
    hooks: dict[Location, None] = field(default_factory=dict)
    _watched: dict[int, _Watched] = field(default_factory=dict)
    _last: Location | None = None
    _entries: int = 0
    _work: int = 0
    _busy: bool = False

    @property
    def mode(self) -> TorchFunctionMode:
        """Return a mode that shows us every op."""
        follower = self

        class Operations(TorchFunctionMode):
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                del types
                kwargs = kwargs or {}
                if follower._busy:
                    return func(*args, **kwargs)
                given = [one for one in _tensors((args, kwargs)) if _counts(one)]
                depends = any(one.requires_grad for one in given)
                result = func(*args, **kwargs)
                if depends and func is torch.Tensor.register_hook:
                    returned = hook_place(args[1]).location if len(args) > 1 else None
                    follower.hooks.update({} if returned is None else {returned: None})
                elif depends:
                    follower._note(func, given, result)
                return result

        return Operations()

    def seen(self) -> Unrecorded:
        """Return what was seen so far."""
        return Unrecorded(
            self.definition,
            tuple(self.writes),
            tuple(self.cuts),
            tuple(self.hooks),
            tuple(map(frozenset, self.cuts.values())),
        )

    def begin(self, variables: Iterable[torch.Tensor]) -> None:
        """Watch the tensors that gradients are checked for."""
        for variable in variables:
            self.variables[id(variable)] = variable
            self.watch(variable)

    def watch(self, tensor: torch.Tensor) -> None:
        """Watch a tensor of the graph from now on."""
        if id(tensor) in self._watched or not _counts(tensor) or self._entries > _MOST_ENTRIES:
            return
        self._entries += tensor.numel()
        known = tensor.detach()
        self._watched[id(tensor)] = _Watched(
            tensor, known.clone(), tensor.grad_fn, version_of(tensor)
        )

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        """Follow the lines of the user's functions, as ``sys.settrace`` asks."""
        del event, argument
        code = frame.f_code
        if owner_of_file(code.co_filename) is not Owner.USER:
            return None
        if self.definition is None:
            self.definition = _location(frame, definition_line(code))
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        del argument
        if event in {"line", "return"} and not self._busy:
            self._compare()
            back = frame.f_back
            if event == "line":
                self._last = _location(frame, frame.f_lineno)
            elif back is not None and owner_of_file(back.f_code.co_filename) is Owner.USER:
                self._last = _location(back, back.f_lineno)
        return self._step

    def _compare(self) -> None:
        """See which tensors were changed without a record by the line that ran last."""
        if self._work > _MOST_WORK:
            return
        self._busy = True
        try:
            for known in self._watched.values():
                self._work += known.tensor.numel()
                now = known.tensor.detach()
                same = now.shape == known.values.shape and _equal(now, known.values)
                node, version = known.tensor.grad_fn, version_of(known.tensor)
                # What needs no gradient may be written as long as the version tells of it.
                hidden = known.tensor.requires_grad or version == known.version
                if not same:
                    if node is known.node and hidden and self._last is not None:
                        self.writes[self._last] = None
                    known.values = now.clone()
                known.node, known.version = node, version
        except Exception:  # noqa: BLE001 - a tensor that refuses to be looked at
            self._watched.clear()
        finally:
            self._busy = False

    def _depends(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a variable, or computed of something that needs a gradient."""
        return tensor.requires_grad and (tensor.grad_fn is not None or id(tensor) in self.variables)

    def _cut(self, location: Location, how: str, given: list[torch.Tensor]) -> None:
        """Note a cut, and which variables the values depend on that it takes out of the graph."""
        ends = {id(getattr(node, "variable", None)) for node in reachable(*_nodes(given))}
        ends.update(map(id, given))
        variables = {index for index, variable in enumerate(self.variables) if variable in ends}
        self.cuts.setdefault((location, how), set()).update(variables)

    def _note(
        self, function: Callable[..., object], given: list[torch.Tensor], result: object
    ) -> None:
        """Watch what an op was given and gave, and note what it takes out of the graph."""
        self._busy = True
        try:
            made = [one for one in _tensors(result) if _counts(one)]
            name = getattr(function, "__name__", "")
            if name == "__get__":
                owner = getattr(function, "__self__", None)
                name = ".data" if owner is torch.Tensor.data else ""
            location = _caller(self.base)
            if any(one.requires_grad for one in made):
                # A leaf that no op has read yet may be written: so parameters are initialised.
                read = [one for one in given if not any(one is each for each in made)]
                made = [one for one in made if one.grad_fn is not None]
                for one in (*read, *made) if torch.is_grad_enabled() else ():
                    self.watch(one)
            elif location is None or not any(map(self._depends, given)):
                return
            elif name == ".data" or name in _CUTS:
                how = name if name.startswith(".") else f"{name}()"
                self._cut(location, f"`{how}`", given)
            elif made and not torch.is_grad_enabled():
                self._cut(location, "no_grad()", given)
        except Exception:  # noqa: BLE001 - a tensor that refuses to be looked at
            return
        finally:
            self._busy = False


def _tensors(tree: object) -> Iterator[torch.Tensor]:
    for _, leaf in leaves_with_paths(tree, ""):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def _nodes(tensors: Iterable[torch.Tensor]) -> list[Any]:
    return [tensor.grad_fn for tensor in tensors]


def _counts(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_meta
        and (tensor.is_floating_point() or tensor.is_complex())
    )


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _location(frame: FrameType, line: int) -> Location:
    code = frame.f_code
    return Location(code.co_filename, line, function=getattr(code, "co_qualname", code.co_name))


def _forwards() -> set[object]:
    """Return the code of each custom Function's ``forward``; ``apply`` may leave no frame."""
    waiting: list[type] = [torch.autograd.Function]
    found: set[object] = set()
    while waiting:
        function = waiting.pop()
        waiting += function.__subclasses__()
        found.add(getattr(vars(function).get("forward"), "__func__", None))
    return {getattr(each, "__code__", None) for each in found}


def _caller(base: FrameType) -> Location | None:
    """Return the user's innermost line that is running, of what was called from a frame."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and made for this
    found: Location | None = None
    forwards = _forwards()
    while frame is not None and frame is not base:
        if frame.f_code in forwards:
            return None  # in a custom Function nothing is recorded, nor has to be
        if found is None and owner_of_file(frame.f_code.co_filename) is Owner.USER:
            found = _location(frame, frame.f_lineno)
        frame = frame.f_back
    return found
