"""What an audit tells of a run, whether anything is wrong or not."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.reporting import json as json_report
from gradcheck_suite.reporting.ledger import ledger_lines, ledger_title

_SCHEMA = Path(json_report.__file__).parent / "schemas" / "report-1.schema.json"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
        self.spare = nn.Linear(4, 1)

    def forward(self, x):
        return self.layers(x).sum()


def audited(train, *arguments, **options):
    with gs.audit(report=False, **options) as session:
        train(*arguments)
    return session


def told(session):
    return [f"{line.subject}: {line.facts}" for line in ledger_lines(session.ledger.to_dict())]


def unusual(session):
    lines = ledger_lines(session.ledger.to_dict())
    return [f"{line.subject}: {line.facts}" for line in lines if line.unusual]


def train(model, optimizer, *, steps=10, backwards=None):
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(1 if backwards is None else backwards(step)):
            model(torch.ones(2, 4)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def test_a_run_is_told_in_facts(model):
    session = audited(lambda: train(model, torch.optim.SGD(model.layers.parameters(), lr=0.1)))
    (optimizer,) = session.ledger.optimizers
    assert (optimizer.name, optimizer.steps) == ("SGD", 10)
    assert optimizer.backwards == ((1, 10),)
    assert [place.count for place in (*optimizer.stepped, *optimizer.cleared)] == [10, 10]
    assert [place.what for place in optimizer.clipped] == ["clip_grad_norm_"]
    assert [group.parameters for group in optimizer.groups] == [6]
    parameters = {each.name: each for each in session.ledger.parameters}
    weight = parameters["model.layers.0.weight"]
    assert weight.owners == ("SGD",)
    assert weight.with_gradient == weight.steps > 0
    assert weight.changed
    spare = parameters["model.spare.weight"]
    assert (spare.owners, spare.with_gradient, spare.changed) == ((), 0, False)
    (module,) = session.ledger.modules
    assert (module.name, module.kind) == ("model", "Net")
    assert {call.what for call in module.calls} == {"training mode, recorded"}
    (backward,) = session.ledger.backwards
    assert (backward.place.count, backward.reached) == (10, 6)


def test_lines_are_those_of_the_program(model):
    session = audited(lambda: train(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    (optimizer,) = session.ledger.optimizers
    (place,) = optimizer.stepped
    assert "optimizer.step()" in source[place.location.line - 1]
    (place,) = optimizer.cleared
    assert "optimizer.zero_grad()" in source[place.location.line - 1]


def test_steps_unlike_the_others_stand_out(model):
    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, backwards=lambda step: 2 if step == 4 else 1)

    assert "SGD: 1 step used 2 backwards, the other 9 1 each" in unusual(audited(run))


def test_what_no_optimizer_owns_and_what_gets_no_gradient_stand_out(model):
    scale = nn.Parameter(torch.ones(()))

    def run():
        optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": []}], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (model(torch.ones(2, 4)) * scale).backward()
            optimizer.step()

    lines = unusual(audited(run))
    assert any("group 1 of 2 has no parameters" in line for line in lines)
    assert any("owned by no optimizer, gradients in each step, unchanged" in x for x in lines)
    assert any(
        line.startswith("2 parameters (model.spare.*): owned by SGD, never a gradient")
        for line in lines
    )


def test_a_clean_run_has_nothing_unusual(model):
    del model.spare
    session = audited(lambda: train(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    assert unusual(session) == []
    assert any(
        line.startswith("6 parameters: owned by SGD, gradients in") for line in told(session)
    )


def test_parameters_frozen_later_and_shared_memory_are_told(model):
    twin = nn.Linear(4, 4)
    twin.weight.data = model.layers[0].weight.data

    def run():
        optimizer = torch.optim.SGD([*model.parameters(), *twin.parameters()], lr=0.1)
        for step in range(5):
            model.layers[1].requires_grad_(step < 2)
            optimizer.zero_grad()
            (model(torch.ones(2, 4)) + twin(torch.ones(4)).sum()).backward()
            optimizer.step()

    lines = unusual(audited(run))
    assert any("frozen later" in line and "model.layers.1" in line for line in lines)
    assert any("shares memory with another" in line for line in lines)


def test_modes_and_recording_of_each_module_are_told(model):
    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, steps=2)
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 4))
        model.spare.train()
        model(torch.ones(2, 4))

    (module,) = audited(run).ledger.modules
    assert {call.what for call in module.calls} == {
        "training mode, recorded",
        "evaluation mode, not recorded",
        "partly in training mode, recorded",
    }


def test_the_report_holds_it_in_text_json_and_html(model, tmp_path):
    session = audited(lambda: train(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    text = str(session.report)
    assert "what happened in 10 steps" in text
    document = json.loads(json_report.render(session.report))
    jsonschema.Draft202012Validator(json.loads(_SCHEMA.read_text())).validate(document)
    assert document["ledger"]["steps"] == 10
    from gradcheck_suite.reporting import html

    page = html.render(session.report)
    assert "what happened in 10 steps" in page
    assert "model.spare.*" in page


@pytest.mark.slow
def test_a_thousand_parameters_fit_on_a_screen():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(300))
            self.heads = nn.ModuleDict({f"task{i}": nn.Linear(2, 1) for i in range(200)})

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.heads["task7"](x).sum()

    model = Wide()

    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).backward()
            optimizer.step()

    session = audited(run)
    text = str(session.report)
    assert len(text[text.index("what happened") :].splitlines()) < 30
    assert len(session.ledger.parameters) == 1000


def test_an_audit_without_training_has_no_ledger():
    session = audited(lambda: torch.ones(2).sum())
    assert session.report.ledger is None


def test_the_terms_of_a_loss_and_the_line_that_cuts_one_off(model):
    def penalty(out):
        return out.detach().square()  # <- cut

    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(4):
            optimizer.zero_grad()
            out = model(torch.ones(2, 4))
            loss = out.square() + penalty(out)
            loss.backward()
            optimizer.step()

    session = audited(run)
    (loss,) = session.ledger.losses
    assert [term.state for term in loss.terms] == ["live", "cut"]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert source[loss.terms[1].cut.line - 1].endswith("# <- cut")
    (line,) = [line for line in unusual(session) if line.startswith("loss of the backward")]
    assert "carries a gradient; `penalty(out)` does not, cut at" in line


def test_an_optimizer_that_has_the_identity_of_one_that_is_gone_is_another():
    def train():
        for rate in (0.1, 0.2, 0.3):
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).backward()
                optimizer.step()
            del optimizer, model

    ledger = audited(train).ledger
    assert [(each.name, each.steps) for each in ledger.optimizers] == [
        ("SGD 1", 2),
        ("SGD 2", 2),
        ("SGD 3", 2),
    ]
    owners = [each.owners for each in ledger.parameters]
    assert set(owners) == {("SGD 1",), ("SGD 2",), ("SGD 3",)}


def test_gradients_that_a_closure_fills_are_those_of_its_step():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 2)).sum()
        loss.backward()
        return loss

    with gs.audit() as session:
        for _ in range(4):
            optimizer.step(closure)
    assert {(each.steps, each.with_gradient) for each in session.ledger.parameters} == {(4, 4)}


def test_counts_of_some_steps_say_so(model):
    session = audited(
        lambda: train(model, torch.optim.SGD(model.layers.parameters(), lr=0.1), steps=40),
        overhead=float("inf"),
    )
    lines = told(session)
    assert any("gradients in each of 8 steps looked at, changed" in line for line in lines)
    assert any("never a gradient in 8 steps looked at" in line for line in lines)
    assert any(
        line.startswith("calls of model (Net) looked at: training mode, recorded: 8 at")
        for line in lines
    )
    assert ledger_title(session.ledger.to_dict()) == "what happened in 40 steps"


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004 - torch's
        return x / 2

    @staticmethod
    def backward(ctx, grad_output):  # noqa: ARG004 - torch's  # <- here
        return grad_output / 2


class Unused(Halved):
    pass


def test_hand_written_backwards_are_named_as_what_an_audit_does_not_check(model, line_of):
    with gs.audit(report=False) as session:
        Halved.apply(model(torch.randn(3, 4))).sum().backward()
    (function,) = session.ledger.functions
    assert function.name == "Halved"
    assert function.location is not None
    assert function.location.line == line_of(Halved.backward)
    lines = {each.subject: each.facts for each in ledger_lines(session.ledger.to_dict())}
    told = lines["1 hand-written backward"]
    assert told.startswith("Halved at ")
    assert told.endswith("compares them with finite differences, gradcheck-suite verify does")


def test_operations_of_torch_are_no_hand_written_backwards(model):
    with gs.audit(report=False) as session:
        model(torch.randn(3, 4)).sum().backward()
    assert session.ledger.functions == ()
