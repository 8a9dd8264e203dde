"""GCS201: a loss that is kept with its graph from one iteration to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradcheck_lint.model.comprehensions import may_have_comprehension
from gradcheck_lint.model.flow import Backward, Store
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.values import spent_by
from gradcheck_lint.rules._emptying import is_emptied
from gradcheck_lint.rules._graph_kept_words import kept_by_store, kept_when_spent
from gradcheck_lint.rules._graph_proofs import always_meets, makes_likely, proves_graph, records
from gradcheck_lint.rules._handed_in import kept_by_caller
from gradcheck_lint.rules._kept_by_callees import kept_by_callees
from gradcheck_lint.rules._outliving import consumes, escapes, is_let_go, keeps
from gradcheck_lint.rules._repeating import (
    differentiated_later,
    is_training_step,
    kept_by_closure,
    kept_by_object,
    steps_for_others,
)
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_lint.rules._spent import may_get_spent, spent_before
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class GraphKept(Rule):
    """A loss is stored with its graph, which then lives as long as what it's stored in."""

    entry = catalogue.GRAPH_KEPT

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether backward() is called there, or by what a loop calls and keeps results of."""
        scope = function.scope
        if Part.BACKWARD in scope.parts or is_training_step(function):
            return True
        may_repeat = (
            Part.LOOP in scope.parts or scope.owner is not None or may_have_comprehension(scope)
        )
        return may_repeat and (
            function.module.near.has_itself(scope, BACKWARD) or may_get_spent(function)
        )

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every store of a value that ``backward()`` is called on in the same loop."""
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        backwards.extend(differentiated_later(function))
        for store in events:
            if not isinstance(store, Store):
                continue
            if not store.loops:
                yield from _of_object(function, store, backwards)
                continue
            if (spent := spent_before(function, store)) is not None:
                is_kept = records(store, store.how) and keeps(store)
                if is_kept and not is_let_go(function, store):
                    yield kept_when_spent(function, store, spent)
                continue
            proofs = [
                backward
                for backward in backwards
                if proves_graph(backward, store, store.stored, store.how)
            ]
            certain = bool(proofs)
            if not proofs:
                proofs = makes_likely(function, backwards, store, store.stored, store.loop)
            if not proofs or not keeps(store) or is_let_go(function, store):
                continue
            if any(consumes(backward, store) for backward in backwards):
                continue
            if any(proof.retains_graph for proof in proofs) and escapes(function, store):
                continue
            yield kept_by_store(function, store, proofs, certain=certain)
        yield from kept_by_callees(function, backwards)

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.history = []

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss, "size": len(x)}

    def fit(self, loader):
        total = 0.0
        for x in loader:
            result = self.step(x)
            self.history.append(result["loss"])
            total += result["loss"] * result["size"]
        return total
""",
            lines=(20, 21),
            fixed="""\
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.history = []

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss, "size": len(x)}

    def fit(self, loader):
        total = 0.0
        for x in loader:
            result = self.step(x)
            self.history.append(result["loss"])
            total += (result["loss"] * result["size"]).detach()
        return total
""",
        ),
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
    mean, smooth = None, 0.0
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        mean = loss if mean is None else 0.9 * mean + 0.1 * loss
        if step == 0:
            smooth = loss
        else:
            smooth = 0.9 * smooth + 0.1 * loss
    return mean, smooth
""",
            lines=(10, 14),
            fixed="""\
import torch

def train(model, loader, optimizer):
    mean, smooth = None, 0.0
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach() if mean is None else 0.9 * mean + 0.1 * loss.detach()
        if step == 0:
            smooth = loss.detach()
        else:
            smooth = 0.9 * smooth + 0.1 * loss.detach()
    return mean, smooth
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

def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    return loss

def kept(model, x):
    loss = model(x).mean()
    loss.backward(retain_graph=True)
    return loss

def train(model, optimizer, loader):
    numbers, terms, total, last = [], [], 0.0, None
    for x in loader:
        numbers.append(step(model, optimizer, x).item())
        last = step(model, optimizer, x)
        with torch.no_grad():
            total += step(model, optimizer, x) * len(x)
        terms.append(kept(model, x))
    torch.stack(terms).mean().backward()
    return numbers, total, last
""",
            why="the number alone is kept, or the last loss, or one that is differentiated again",
        ),
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


def _of_object(
    function: FunctionModel, store: Store, backwards: list[Backward]
) -> Iterator[Violation]:
    """Yield what a method that repeats keeps in its object."""
    spent = spent_by(store.stored)
    proofs = [
        backward
        for backward in backwards
        if not backward.retains_graph
        and proves_graph(backward, store, store.stored, store.how)
        and always_meets(backward, store)
    ]
    if (spent is None and not proofs) or not records(store, store.how):
        return
    is_kept = kept_by_object(function, store) or kept_by_closure(function, store)
    is_kept = (is_kept and not is_emptied(function, store)) or kept_by_caller(function, store)
    is_consumed = any(consumes(backward, store) for backward in backwards)
    if is_kept and not is_consumed:
        if spent is not None:
            yield kept_when_spent(function, store, spent)
        else:
            certain = not steps_for_others(function)
            yield kept_by_store(function, store, proofs, certain=certain)
