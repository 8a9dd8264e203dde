"""GCS201: a loss that is kept with its graph from one iteration to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.flow import Backward, Call, GradMode, Return, Store, StoreKind
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.values import (
    Kind,
    Origin,
    Values,
    implied_by_all,
    mentioned_by,
    sites,
    through_all,
)
from gradcheck_lint.rules._keepers import Keeper, keepers
from gradcheck_lint.rules._rule import Fix, Invalid, Replacement, Rule, Valid, Violation
from gradcheck_lint.rules._text import source_of
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class GraphKept(Rule):
    """A loss is stored with its graph, which then lives as long as what it's stored in."""

    entry = catalogue.GRAPH_KEPT
    part = Part.BACKWARD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every store of a value that ``backward()`` is called on in the same loop."""
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        if not backwards:
            return
        for store in events:
            if not isinstance(store, Store) or not store.loops:
                continue
            proofs = [
                backward
                for backward in backwards
                if _proves_graph(backward, store, store.stored, store.how)
            ]
            certain = bool(proofs)
            if not proofs:
                proofs = [backward for backward in backwards if _shares_forward(backward, store)]
            if not proofs or not _keeps(store) or _is_of_this_iteration(function, store):
                continue
            if any(_consumes(backward, store) for backward in backwards):
                continue
            if any(proof.retains_graph for proof in proofs) and _escapes(function, store):
                continue
            yield self._violation(function, store, proofs, certain=certain)
        for keeper in keepers(function):
            kept = [
                backward
                for backward in backwards
                if _proves_graph(backward, keeper.call, keeper.handed, keeper.store.how)
            ]
            if kept and not any(proof.retains_graph for proof in kept):
                yield self._violation_in_callee(function, keeper, kept)

    def _violation_in_callee(
        self, function: FunctionModel, keeper: Keeper, proofs: list[Backward]
    ) -> Violation:
        proof = next((known for known in proofs if _always_meets(known, keeper.call)), proofs[0])
        call = keeper.call.node
        given = call.args if isinstance(call, cst.Call) else ()
        value = next(
            (
                argument.value
                for position, argument in enumerate(given)
                if keeper.argument in {position, argument.keyword and argument.keyword.value}
            ),
            None,
        )
        what = source_of(function.module.tree, value) if value is not None else "the value"
        verb = "adds" if keeper.store.how is StoreKind.ACCUMULATE else "puts"
        hint = "hand over the number alone: `.item()`, or `.detach()` to stay on the device"
        if what.isidentifier():
            hint = f"hand over the number alone: `{what}.item()`, or `{what}.detach()`"
        return Violation(
            call,
            f"this call {verb} `{what}` with its graph into `{keeper.store.target}`, so the graphs "
            "of all iterations stay in memory as long as that does",
            Severity.ERROR if _always_meets(proof, keeper.call) else Severity.WARNING,
            hint,
            (
                (keeper.store.node, "it is kept here"),
                (proof.node, "it has a graph: backward() is called on it here"),
            ),
        )

    def _violation(
        self, function: FunctionModel, store: Store, proofs: list[Backward], *, certain: bool
    ) -> Violation:
        tree = function.module.tree
        proof = next((known for known in proofs if _always_meets(known, store)), proofs[0])
        is_differentiated = certain
        met = "backward() is called on it here" if certain else "backward() goes through it here"
        certain = certain and _always_meets(proof, store) and _is_known_container(store)
        what = source_of(tree, store.stored_node) if store.stored_node is not None else "the value"
        if store.how is StoreKind.ACCUMULATE:
            message = (
                f"`{store.target}` adds up `{what}` with its graph, so the graphs of all "
                "iterations stay in memory as long as the sum does"
            )
        else:
            message = (
                f"`{store.target}` keeps `{what}` with its graph, so the graphs of all "
                "iterations stay in memory as long as it does"
            )
        hint = "keep the number alone: `.item()`, or `.detach()` to stay on the device"
        if what.isidentifier():
            hint = f"keep the number alone: `{what}.item()`, or `{what}.detach()` to stay a tensor"
        return Violation(
            store.node,
            message,
            Severity.ERROR if certain else Severity.WARNING,
            hint,
            ((proof.node, f"it has a graph: {met}"),),
            fix=_detached(function, store, safe=certain) if is_differentiated else None,
        )

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train(model, loader, criterion, optimizer):
    total_loss = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total_loss += loss
    return total_loss / len(loader)
""",
            lines=(10,),
            fixed="""\
import torch

def train(model, loader, criterion, optimizer):
    total_loss = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total_loss += loss.detach()
    return total_loss / len(loader)
""",
        ),
        Invalid(
            """\
import torch

def train(model, loader, criterion, optimizer):
    total, pairs = 0.0, []
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total = total + loss * 2  # weighted
        pairs.append((i, loss))
    return total, pairs
""",
            lines=(10, 11),
            fixed="""\
import torch

def train(model, loader, criterion, optimizer):
    total, pairs = 0.0, []
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total = total + loss.detach() * 2  # weighted
        pairs.append((i, loss))
    return total, pairs
""",
        ),
        Invalid(
            """\
import torch

def train(model, loader, optimizer):
    losses = []
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        losses.append(loss)
        loss.backward()
        optimizer.step()
    return losses
""",
            lines=(8,),
            fixed="""\
import torch

def train(model, loader, optimizer):
    losses = []
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        losses.append(loss.detach())
        loss.backward()
        optimizer.step()
    return losses
""",
        ),
        Invalid(
            """\
import torch

class Trainer:
    def __init__(self, model):
        self.model = model
        self.history = {"loss": []}

    def fit(self, loader, optimizer):
        running = 0
        for x in loader:
            optimizer.zero_grad()
            loss = self.model(x).mean()
            loss.backward()
            optimizer.step()
            running = running + loss * len(x)
            self.history["loss"].append((loss, len(x)))
""",
            lines=(15, 16),
            fixed="""\
import torch

class Trainer:
    def __init__(self, model):
        self.model = model
        self.history = {"loss": []}

    def fit(self, loader, optimizer):
        running = 0
        for x in loader:
            optimizer.zero_grad()
            loss = self.model(x).mean()
            loss.backward()
            optimizer.step()
            running = running + loss.detach() * len(x)
            self.history["loss"].append((loss, len(x)))
""",
        ),
        Invalid(
            """\
import torch

def train(model, loader, history, optimizer):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        history.append(loss)
""",
            lines=(9,),
            severity=Severity.WARNING,
            fixed="""\
import torch

def train(model, loader, history, optimizer):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
""",
            safely_fixed="""\
import torch

def train(model, loader, history, optimizer):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        history.append(loss)
""",
        ),
        Invalid(
            """\
import torch

class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = 0
        self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

def log(history, value):
    history.append(value)

def train(model, loader, optimizer):
    meter, history = AverageMeter(), []
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        meter.update(loss, len(x))
        log(history, loss)
    return meter, history
""",
            lines=(25, 26),
        ),
        Invalid(
            """\
import torch

def train(model, loader, optimizer):
    predictions, error = [], 0.0
    for x, y in loader:
        optimizer.zero_grad()
        predicted = model(x)
        loss = (predicted - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        predictions.append(predicted)
        error += (predicted - y).abs().mean()
    return predictions, error
""",
            lines=(11, 12),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

class Meter:
    def __init__(self):
        self.values = []
        self.last = None

    def add(self, value):
        if torch.is_tensor(value):
            value = value.item()
        self.values.append(value)

    def note(self, value):
        self.values.append(value.detach())

    def remember(self, value):
        self.last = value

def train(model, loader, optimizer):
    meter = Meter()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        meter.add(loss)
        meter.note(loss)
        meter.remember(loss)
        meter.values.append(loss.item())
        of_this_batch = Meter()
        of_this_batch.values.append(loss)
""",
            why="the number alone is kept, or one graph, or as long as the iteration",
        ),
        Valid(
            """\
import torch

class Meter:
    def __init__(self):
        self.sum = 0

    def update(self, value):
        self.sum += value * 2

def train(model, loader, optimizer):
    meter = Meter()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            meter.update(loss)
""",
            why="a sum that is made without recording has no graph",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    total, losses = 0.0, []
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
        losses.append(float(loss))
        losses.append(loss.detach())
""",
            why="numbers and detached tensors have no graph",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    total = 0.0
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        loss = loss.item()
        total += loss
""",
            why="the name holds a number by then",
        ),
        Valid(
            """\
import torch

def train(model, batches, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        total = 0
        for x in batch:
            total += model(x).mean()
        total.backward()
        optimizer.step()
""",
            why="the sum is the loss",
        ),
        Valid(
            """\
import torch

def train(model, batches, optimizer):
    losses = []
    for x in batches:
        loss = model(x).mean()
        loss.backward(retain_graph=True)
        losses.append(loss)
    torch.stack(losses).mean().backward()
""",
            why="backward needs the list afterwards",
        ),
        Valid(
            """\
import torch

def evaluate(model, loader):
    total = 0
    with torch.no_grad():
        for x in loader:
            loss = model(x).mean()
            total += loss
    return total
""",
            why="no graph is recorded",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        log = {}
        log["loss"] = loss
        parts = []
        parts.append(loss)
        loss.backward()
        optimizer.step()
""",
            why="the containers are made anew in each iteration",
        ),
        Valid(
            """\
import torch

def train(model, loader, optimizer):
    predictions, hits, close = [], 0, []
    for x, y in loader:
        optimizer.zero_grad()
        predicted = model(x)
        loss = torch.nn.functional.cross_entropy(predicted, y)
        loss.backward()
        optimizer.step()
        predictions.append(predicted.detach().cpu())
        hits += predicted.max(1)[1].eq(y).sum()
        close.append(predicted.gt(0.5).float().mean())
        close.append((predicted.argmax(dim=1) == y).float().mean())
    return predictions, hits, close
""",
            why="integers and truths have no graph",
        ),
    )


def _proves_graph(backward: Backward, at: Store | Call, kept: Values, how: StoreKind) -> bool:
    """Tell whether ``backward`` is called, in a loop with ``at``, on what is kept there."""
    if not set(backward.loops) & set(at.loops) or _exclude_each_other(backward, at):
        return False
    if how is StoreKind.ACCUMULATE and at.mode in {GradMode.DISABLED, GradMode.UNKNOWN}:
        return False
    proven = frozenset[int]().union(*(value.implies for value in backward.values))
    proven |= implied_by_all(backward.values)
    return bool(kept) and all(value.carries & proven for value in kept)


def _shares_forward(backward: Backward, store: Store) -> bool:
    """Tell whether what is kept comes from the forward that ``backward`` goes through.

    It has a graph then, unless the loss has its own from elsewhere.
    """
    if store.loops[-1] not in backward.loops or _exclude_each_other(backward, store):
        return False
    forwards = through_all(backward.values)
    return (
        store.mode not in {GradMode.DISABLED, GradMode.UNKNOWN}
        and bool(store.stored)
        and all(
            value.cut is None and value.kind in _WITH_GRAPH and value.through & forwards
            for value in store.stored
        )
    )


def _exclude_each_other(left: Backward, right: Store | Call) -> bool:
    arms = dict(left.arms)
    return any(arms.get(branch, arm) != arm for branch, arm in right.arms)


def _always_meets(backward: Backward, store: Store | Call) -> bool:
    """Tell whether ``backward`` is called on every path on which the value is stored."""
    return store.arms[: len(backward.arms)] == backward.arms


def _is_known_container(store: Store) -> bool:
    if store.how is StoreKind.ACCUMULATE:
        return True
    return all(value.kind is Kind.CONTAINER for value in store.target_values)


def _keeps(store: Store) -> bool:
    """Tell whether what it's stored in surely outlives the iteration."""
    if not store.target_values:
        return False
    own = sites(store.target_values)
    for value in store.target_values:
        if value.origin is Origin.BOUNDED or value.kind in {Kind.OPTIMIZER, Kind.MODULE}:
            return False
        if value.kind is Kind.INSTANCE:
            return False
        if store.loops[-1] in value.loops and not _continues(value.mentions, own, value.site):
            return False
    return any(store.loops[-1] not in value.loops for value in store.target_values)


def _is_of_this_iteration(function: FunctionModel, store: Store) -> bool:
    """Tell whether the loop itself makes the object whose attribute it's stored in."""
    root, _, attribute = store.target.partition(".")
    return bool(attribute) and any(
        store.loops[-1] in value.loops for value in function.bindings.get(root, ())
    )


def _continues(mentions: frozenset[int], own: frozenset[int], site: int) -> bool:
    """Tell whether a value made in the loop is the sum so far, with one more term."""
    return site in mentions or bool(mentions & (own - {site}))


def _consumes(backward: Backward, store: Store) -> bool:
    """Tell whether backward may be called on the container or sum itself."""
    return bool(mentioned_by(backward.values) & _sites_of_sum(store.target_values, store))


def _sites_of_sum(values: Values, store: Store) -> frozenset[int]:
    return sites(values) | {id(store.node)}


def _escapes(function: FunctionModel, store: Store) -> bool:
    wanted = _sites_of_sum(store.target_values, store)
    for event in function.events():
        if isinstance(event, Call) and event.mentions & wanted:
            return True
        if isinstance(event, Return) and mentioned_by(event.values) & wanted:
            return True
    return False


_WITH_GRAPH = frozenset({Kind.UNKNOWN, Kind.HISTORY})
_TENSOR_NODES = (cst.Name, cst.Attribute, cst.BinaryOperation, cst.UnaryOperation, cst.Call)


def _detached(function: FunctionModel, store: Store, *, safe: bool) -> Fix | None:
    """Detach what is kept, unless it is a tuple or the like, or is taken from one.

    What is surely a tensor whose graph backward() has freed can be differentiated by nobody.
    """
    node = store.stored_node
    if not isinstance(node, _TENSOR_NODES):
        return None
    if any(value.kind in {Kind.CONTAINER, Kind.TUPLE} for value in store.stored):
        return None
    text = function.module.code(node)
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)) and not node.lpar:
        text = f"({text})"
    return Fix((Replacement(node, f"{text}.detach()"),), f"Detach {text}", safe=safe)
