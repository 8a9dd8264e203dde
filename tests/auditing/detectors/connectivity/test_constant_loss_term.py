"""Terms of a loss without a gradient: what is said of them, and what is only noted."""

from __future__ import annotations

import copy
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.auditing.detectors.connectivity.constant_loss_term import (
    ConstantLossTermDetector,
)
from gradcheck_suite.findings import Severity
from tests.auditing.loops.bank import setup
from tests.auditing.loops.terms import batches, update, wide

LIBRARY = str(Path(torch.__file__).parent.parent / "some_library" / "training.py")


def library(source):
    """Return what a module defines that lies where packages are installed."""
    namespace: dict = {"torch": torch}
    exec(compile(textwrap.dedent(source), LIBRARY, "exec"), namespace)
    return namespace


def mask_term(out):
    mask = (out > 0).float()  # <- cut
    return mask.mean()


def one_of_three():
    model, optimizer = setup()
    for x, y in batches(3):
        out = model(x)
        loss = F.mse_loss(out, y) + out.abs().mean() + 2.0 * mask_term(out)  # <- term
        optimizer.zero_grad()
        loss.backward()  # <- backward
        optimizer.step()


def test_term_cut_and_live_terms_are_named(audited, only, line_of):
    finding = only(audited(one_of_three), "GCS411")
    assert finding.message == (
        "`2.0 * mask_term(out)` adds to the value of the loss and nothing to its gradients: a "
        "comparison cuts it off from what is trained; `F.mse_loss(out, y)` and "
        "`out.abs().mean()` alone carry any"
    )
    assert finding.location.line == line_of(mask_term, "cut")
    assert finding.location.function == "mask_term"
    assert [each.location.line for each in finding.related] == [
        line_of(one_of_three, "term"),
        line_of(one_of_three, "backward"),
    ]
    assert finding.evidence["backwards"] == finding.evidence["with_constants"] == 3


def test_the_terms_are_there_for_the_ledger(audited, line_of):
    session = audited(one_of_three)
    detectors = session._detectors if hasattr(session, "_detectors") else ()
    told = [
        t for each in detectors if isinstance(each, ConstantLossTermDetector) for t in each.terms
    ]
    assert len(told) == 1
    assert told[0].backward.line == line_of(one_of_three, "backward")
    assert (told[0].live, told[0].constants, told[0].backwards) == (2, 1, 3)
    assert [term.state for term in told[0].terms] == ["live", "live", "cut"]
    assert told[0].terms[2].cut.line == line_of(mask_term, "cut")
    assert told[0].terms[2].factor == 2.0


def only_a_regulariser():
    model, optimizer = wide()
    for x, _ in batches(3):
        out = model(x)
        fit = F.mse_loss(torch.from_numpy(out.detach().numpy()), x)  # <- here
        update(optimizer, fit + 1e-3 * out.pow(2).mean())


def test_a_loss_of_which_the_regulariser_alone_is_left_is_an_error(audited, only, line_of):
    finding = only(audited(only_a_regulariser), "GCS411")
    assert finding.severity is Severity.ERROR
    assert finding.location.line == line_of(only_a_regulariser)


def cut_in_some_steps():
    model, optimizer = setup()
    for number, (x, y) in enumerate(batches(4)):
        out = model(x)
        size = out.abs().mean()
        if number < 2:
            size = size.detach()
        update(optimizer, F.mse_loss(out, y) + 0.1 * size)


def test_a_term_that_has_a_gradient_in_other_steps_is_no_warning(audited):
    assert all(each.severity is Severity.NOTE for each in audited(cut_in_some_steps).findings)


def entropy_of_the_teacher():
    student, optimizer = wide()
    teacher = copy.deepcopy(student)
    for x, _ in batches(3):
        with torch.no_grad():
            p = teacher(x).softmax(1)
        log_q = student(x).log_softmax(1)
        loss = (p * p.log()).sum(1).mean() - (p * log_q).sum(1).mean()
        update(optimizer, loss)


def test_a_constant_of_the_target_is_a_note_with_the_doubt(audited, only):
    finding = only(audited(entropy_of_the_teacher), "GCS411")
    assert finding.severity is Severity.NOTE
    assert any("as a target is" in doubt for doubt in finding.evidence["lowered"])


def compared_with_its_own_kind():
    critic, _ = setup()
    generator, optimizer = wide()
    for x, _ in batches(3):
        with torch.no_grad():
            real = critic(x).mean()
        update(optimizer, real - critic(generator(x)).mean())


def test_a_constant_to_compare_with_is_a_note(audited):
    found = [each for each in audited(compared_with_its_own_kind).findings if each.code == "GCS411"]
    assert [each.severity for each in found] == [Severity.NOTE]


def another_network():
    model, optimizer = setup()
    other = nn.Linear(4, 1)
    for x, y in batches(3):
        update(optimizer, F.mse_loss(model(x), y) + other(x).detach().abs().mean())


def test_a_term_of_another_network_is_a_note(audited, only):
    finding = only(audited(another_network), "GCS411")
    assert finding.severity is Severity.NOTE
    assert "other parameters" in finding.evidence["lowered"][0]


hidden = library(
    """
    class Metric:
        def __call__(self, out):
            return out.detach().abs().mean()
    """
)["Metric"]()


def term_that_the_source_does_not_tell():
    model, optimizer = setup()
    for x, y in batches(3):
        out = model(x)
        update(optimizer, F.mse_loss(out, y) + out.std() + hidden(out))


def test_what_the_source_does_not_tell_is_noted(audited, only):
    finding = only(audited(term_that_the_source_does_not_tell), "GCS411")
    assert finding.severity is Severity.NOTE
    assert finding.message == (
        "1 of 3 terms of the loss carries no gradient: expected numbers and targets alone to be "
        "constants"
    )


def named_term_that_the_source_does_not_tell():
    model, optimizer = setup()
    for x, y in batches(3):
        out = model(x)
        metric = hidden(out)  # <- here
        update(optimizer, F.mse_loss(out, y) + metric)


def test_a_variable_without_a_graph_shows_what_has_cut_it(audited, only, line_of):
    finding = only(audited(named_term_that_the_source_does_not_tell), "GCS411")
    assert finding.location.line == line_of(named_term_that_the_source_does_not_tell)
    assert "`hidden(...)` cuts it off" in finding.message


framework = library(
    """
    class Trainer:
        def fit(self, module, optimizer, data):
            for batch in data:
                module.optimizer_step(optimizer, lambda: self.closure(module, optimizer, batch))

        def closure(self, module, optimizer, batch):
            optimizer.zero_grad()
            loss = module.training_step(batch, 0)["loss"]
            loss.backward()

    class Module(torch.nn.Module):
        def optimizer_step(self, optimizer, closure):
            closure()
            optimizer.step()
    """
)


class Lit(framework["Module"]):
    def __init__(self, *, cut):
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.cut = cut

    def training_step(self, batch, _number):
        x, y = batch
        out = self.net(x)
        size = out.abs().mean()
        if self.cut:
            size = size.item()  # <- here
        return {"loss": F.mse_loss(out, y) + size}


def fit_with_framework(*, cut):
    module = Lit(cut=cut)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    framework["Trainer"]().fit(module, optimizer, list(batches(3)))


def test_the_step_that_a_framework_calls_is_followed(audited, only, line_of):
    finding = only(audited(lambda: fit_with_framework(cut=True)), "GCS411")
    assert finding.location.line == line_of(Lit.training_step)
    assert not audited(lambda: fit_with_framework(cut=False)).findings


engine = library(
    """
    class Engine:
        def __init__(self, update):
            self._update = update

        def run(self, model, optimizer, data):
            for batch in data:
                optimizer.zero_grad()
                self._update(model, batch).backward()
                optimizer.step()
    """
)


def any_name(model, batch):
    x, y = batch
    out = model(x)
    return F.mse_loss(out, y) + out.abs().mean().item()  # <- here


class Rules:
    def any_method(self, model, batch):
        x, y = batch
        out = model(x)
        return F.mse_loss(out, y) + out.abs().mean().item()  # <- here


@pytest.mark.parametrize("update", [any_name, Rules().any_method])
def test_a_step_of_any_name_is_followed(audited, only, line_of, update):
    def run():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        engine["Engine"](update).run(model, optimizer, list(batches(3)))

    assert only(audited(run), "GCS411").location.line == line_of(update)


class Learner:
    def __init__(this):  # noqa: N805 - some people do
        this.model, this.optimizer = wide()

    def losses(this, x):  # noqa: N805
        out = this.model(x)
        return F.mse_loss(out, x), torch.as_tensor(out.tolist()).abs().mean()  # <- here

    def step(this, x):  # noqa: N805
        fit, size = this.losses(x)
        this.total = fit + 0.2 * size
        this.optimize(this.total)

    def optimize(this, loss):  # noqa: N805
        this.optimizer.zero_grad()
        loss.backward()
        this.optimizer.step()


def test_a_loss_is_followed_up_to_the_caller(audited, only, line_of):
    def run():
        learner = Learner()
        for x, _ in batches(3):
            learner.step(x)

    finding = only(audited(run), "GCS411")
    assert finding.location.line == line_of(Learner.losses)
    assert finding.evidence["terms"] == ("0.2 * size",)


def sums_over_two_horizons(also=None):
    model, optimizer = setup()
    totals = [0, 0]
    for x, y in batches(3):
        out = model(x)
        for _ in range(2):
            for horizon in (0, 1):
                totals[horizon] += F.mse_loss(out, y * horizon)
            if also is not None:
                totals[1] += also(out)
        update(optimizer, sum(totals))
        totals = [0, 0]


def sums_by_name():
    model, optimizer = setup()
    for x, y in batches(3):
        totals = dict.fromkeys(("near", "far"), 0.0)
        out = model(x)
        for name in totals:
            totals[name] += F.mse_loss(out, y)
            totals[name] += out.std()
        update(optimizer, totals["near"] + 0.1 * totals["far"])


class KeepsTotals:
    def __init__(self):
        self.model, self.optimizer = setup()

    def run(self):
        for x, y in batches(3):
            self.totals = [0] * 3
            for horizon in range(3):
                out = self.model(x)
                self.totals[horizon] += F.mse_loss(out, y)
                self.totals[horizon] += 0.1 * out.std()
            update(self.optimizer, sum(self.totals))


@pytest.mark.parametrize("loop", [sums_over_two_horizons, sums_by_name, KeepsTotals().run])
def test_numbers_that_sums_begin_from_are_no_terms(audited, loop):
    assert not audited(loop).findings


def test_beside_numbers_that_sums_begin_from_a_constant_is_noted(audited, only):
    finding = only(audited(lambda: sums_over_two_horizons(hidden)), "GCS411")
    assert finding.severity is Severity.NOTE
    assert finding.message.startswith("1 of 9 terms of the loss carries no gradient")


class Spread(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, outputs):
        return (outputs.var() - self.margin).clamp(min=0.0)


def term_of_what_is_cut_off_before():
    model, optimizer = setup()
    for x, y in batches(3):
        out = model(x)
        values = torch.from_numpy(out.detach().numpy())  # <- cut
        spread = Spread(0.001)(values)
        loss = F.mse_loss(out, y) + spread
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def term_of_what_is_kept():
    model, optimizer = setup()
    for x, y in batches(3):
        out = model(x)
        spread = Spread(0.001)(out)
        loss = F.mse_loss(out, y) + spread
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def term_of_the_inputs():
    model, optimizer = setup()
    for x, y in batches(3):
        spread = Spread(0.001)(x)
        loss = F.mse_loss(model(x), y) + spread
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_what_nobody_can_look_into_makes_a_constant_of_what_is_cut_off(audited, only, line_of):
    finding = only(audited(term_of_what_is_cut_off_before), "GCS411")
    assert finding.severity in (Severity.WARNING, Severity.ERROR)
    assert finding.message.startswith("`spread` adds to the value of the loss and nothing")
    assert finding.location.line == line_of(term_of_what_is_cut_off_before, "cut")


@pytest.mark.parametrize("loop", [term_of_what_is_kept, term_of_the_inputs])
def test_what_nobody_can_look_into_is_not_accused_by_itself(audited, loop):
    found = [each for each in audited(loop).findings if each.severity is not Severity.NOTE]
    assert found == []
