"""Training loops that a library runs: the user's code is one line of calls, or a few methods."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.call_sites import exact_call_site, location_of

LIBRARY = str(Path(torch.__file__).parent.parent / "some_library" / "loops.py")


def library(source):
    """Return what a module defines that lies where packages are installed."""
    namespace: dict = {"torch": torch, "nn": nn}
    exec(compile(textwrap.dedent(source), LIBRARY, "exec"), namespace)
    return namespace


ACTOR_CRITIC = """
    def learn(actor, critic, of_actor, of_critic, steps):
        for _ in range(steps):
            state = torch.randn(8, 4)
            loss = (critic(torch.cat([state, actor(state).detach()], 1)) - 1).pow(2).mean()
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
            loss = -critic(torch.cat([state, actor(state)], 1)).mean()
            of_actor.zero_grad()
            loss.backward()
            of_actor.step()
"""
MICRO_BATCHES = """
    def learn(model, optimizer, steps):
        for _ in range(steps):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
"""


def test_two_backwards_of_a_library_are_told_apart():
    learn = library(ACTOR_CRITIC)["learn"]
    actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
    with gs.audit() as session:
        learn(actor, critic, *(torch.optim.Adam(each.parameters()) for each in (actor, critic)), 12)
    assert session.findings == ()


def test_one_backward_of_a_library_is_known_again():
    learn = library(MICRO_BATCHES)["learn"]
    model = nn.Linear(4, 1)
    with gs.audit() as session:
        learn(model, torch.optim.SGD(model.parameters(), lr=0.01), 6)
    (finding,) = session.findings
    assert finding.code == "GCS302"
    assert finding.location.path == __file__


def test_an_exact_call_site_goes_on_into_the_library():
    call = library("def first(f):\n    return f()\n\ndef second(f):\n    return f()\n")
    places = [call[name](exact_call_site) for name in ("first", "first", "second")]
    assert {location_of(place).path for place in places} == {__file__}
    assert places[0] == places[1] != places[2]


TRAINER = """
    class Trainer:
        def fit(self, module, steps):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
            for _ in range(steps):
                model = module
                loss = model.training_step(torch.randn(8, 4))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""


class Module(nn.Module):
    def __init__(this):  # noqa: N805 - a method may call its object what it likes
        super().__init__()
        this.net = nn.Linear(4, 1)
        this.losses = []

    def training_step(this, x):  # noqa: N805 - as above
        loss = this.net(x).pow(2).mean()
        this.losses.append(loss)  # it grows here
        return loss


@pytest.fixture
def trained():
    trainer = library(TRAINER)["Trainer"]()
    with gs.audit() as session:
        trainer.fit(Module(), 10)
    return session


def test_what_a_users_object_keeps_is_told_by_its_class_and_not_by_a_librarys_variable(trained):
    (finding,) = trained.findings
    assert finding.code == "GCS201"
    assert "list `losses` of Module keeps" in finding.message
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "# it grows here" in source[finding.location.line - 1]
    assert not any("some_library" in related.location.path for related in finding.related)


def test_graphs_that_went_with_their_holder_are_not_said_to_have_none(trained):
    assert not any("who keeps" in line for line in trained.report.not_covered)


WRAPPED = """
    class Wrapper:
        def __init__(self, optimizer):
            self._optimizer = optimizer
            self.__class__ = type("Wrapped", (self.__class__, type(optimizer)), {})

        def step(self, closure=None):
            return self._optimizer.step(closure)

        def __getattr__(self, name):
            return getattr(self._optimizer, name)

    class Prepared(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

        def zero_grad(self):
            self.optimizer.zero_grad()

        def step(self, closure=None):
            return self.optimizer.step(closure)
"""


@pytest.fixture(params=["Wrapper", "Prepared"])
def wrap(request):
    return library(WRAPPED)[request.param]


def adversaries(wrap, *, cleared, steps=12):
    torch.manual_seed(0)
    g, d = nn.Linear(4, 4), nn.Linear(4, 1)
    of_g, of_d = (wrap(torch.optim.Adam(each.parameters(), lr=1e-4)) for each in (g, d))
    with gs.audit() as session:
        for _ in range(steps):
            d(g(torch.randn(8, 4))).mean().backward()
            of_g.step()
            of_g.zero_grad()
            if cleared:
                of_d.zero_grad()
            (d(torch.randn(8, 4)) - d(g(torch.randn(8, 4)).detach())).mean().backward()
            of_d.step()
            of_d.zero_grad()
    return session


def test_what_a_library_wraps_is_the_optimizer_that_clears(wrap):
    assert [each.code for each in adversaries(wrap, cleared=False).findings] == ["GCS309"]


def test_correct_turns_of_wrapped_optimizers_are_silent(wrap):
    session = adversaries(wrap, cleared=True)
    assert session.findings == ()
    assert [each.name for each in session.ledger.optimizers] == ["Adam 1", "Adam 2"]


def test_a_wrapped_optimizer_can_be_the_one_that_is_looked_at(wrap):
    model = nn.Linear(4, 1)
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.01))
    with gs.audit(optimizers=optimizer) as session:
        for _ in range(4):
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
    assert [each.code for each in session.findings] == ["GCS301"]


BACKWARD = """
    def backward(loss, scale=1.0):
        (loss / scale).backward()

    def train(module, optimizer, steps):
        for _ in range(steps):
            loss = module.training_step(torch.randn(8, 4)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def training_step(self, x):
        return self.head(self.body(x)).pow(2).mean()  # makes the loss


def backwards_at(session):
    """Return the comments on the lines at which backwards are told."""
    places = [each.place.location for each in session.ledger.backwards]
    lines = [
        Path(each.path).read_text(encoding="utf-8").splitlines()[each.line - 1] for each in places
    ]
    return [line.partition("  # ")[2] for line in lines]


def test_the_backward_of_a_library_is_told_where_its_loss_was_made():
    model, train = TwoLayers(), library(BACKWARD)["train"]
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.01)
    with gs.audit() as session:
        train(model, optimizer, 6)
    (finding,) = session.findings
    assert finding.code == "GCS307"
    assert backwards_at(session) == ["makes the loss"]
    assert session.ledger.backwards[0].place.location in {each.location for each in finding.related}


def test_a_line_that_hands_a_loss_to_a_library_is_that_of_its_backward():
    model, backward = TwoLayers(), library(BACKWARD)["backward"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gs.audit() as session:
        for _ in range(6):
            optimizer.zero_grad()
            backward(model.training_step(torch.randn(8, 4)), scale=2.0)  # hands it over
            optimizer.step()
    assert backwards_at(session) == ["hands it over"]


MODEL = """
    class Model(nn.Linear):
        def training_step(self, x):
            return self(x).pow(2).mean()
"""


def test_a_loss_that_is_all_the_librarys_leaves_the_users_call():
    model, train = library(MODEL)["Model"](4, 1), library(BACKWARD)["train"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gs.audit() as session:
        train(model, optimizer, 6)  # calls the library
    assert backwards_at(session) == ["calls the library"]


COMPUTED = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
            self.head = nn.Linear(8, 1)

        def forward(self, x):
            return self.head(self.layers(x))

    def train(step, model, steps=6):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(steps):
            result = step(model, torch.randn(8, 4))
            if isinstance(result, tuple):
                result = result[0]
            elif isinstance(result, dict):
                result = result["loss"]
            optimizer.zero_grad()
            getattr(result, "loss", result).backward()
            optimizer.step()
"""


class Output:
    def __init__(self, loss, scores):
        self.loss, self.scores = loss, scores


def loss_or_pair(model, x, return_outputs=False):
    out = model(x)
    scores = out.detach().requires_grad_()  # cuts
    loss = scores.pow(2).mean()
    return (loss, out) if return_outputs else loss


def loss_in_a_dict(model, x):
    out = model(x)
    scores = out.detach().requires_grad_()  # cuts
    return {"loss": scores.pow(2).mean(), "out": out}


def loss_in_an_object(model, x):
    out = model(x)
    scores = out.detach().requires_grad_()  # cuts
    loss = scores.pow(2).mean()
    return Output(loss=loss, scores=out)


def loss_beside_what_is_logged(model, x):
    out = model(x)
    return {"loss": out.pow(2).mean(), "out": out.detach()}


def audited(step, **options):
    found = library(COMPUTED)
    torch.manual_seed(0)
    with gs.audit() as session:
        found["train"](step, found["Model"](), **options)
    return session


@pytest.mark.parametrize("step", [loss_or_pair, loss_in_a_dict, loss_in_an_object])
def test_a_loss_that_is_cut_beside_what_is_returned_is_one_finding_at_the_cut(step):
    (finding,) = audited(step).findings
    assert finding.code == "GCS401"
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert source[finding.location.line - 1].endswith("# cuts")
    assert finding.location.function == step.__name__


def test_a_loss_beside_what_was_detached_for_a_log_is_silent():
    assert audited(loss_beside_what_is_logged).findings == ()


KEPT = {}


def loss_of_what_is_looked_up(model, x):
    KEPT["scores"] = model(x)  # does not reach it
    return torch.ones(2, requires_grad=True).sum()


def test_layers_of_one_call_that_does_not_reach_the_loss_are_one_finding():
    (finding,) = audited(loss_of_what_is_looked_up).findings
    assert finding.code == "GCS403"
    assert "what `model` returns" in finding.message
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert source[finding.location.line - 1].endswith("# does not reach it")


class WithAnUnusedPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 1)
        self.unused = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x):
        return self.used(x)


def test_layers_of_a_part_that_is_never_called_are_one_finding():
    model = WithAnUnusedPart()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gs.audit() as session:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
    (finding,) = session.findings
    assert finding.code == "GCS403"
    assert "`model.unused` is never called" in finding.message
    assert len(finding.evidence["parameters"]) == 4
    assert finding.location.function == "WithAnUnusedPart.forward"


HANDLED = """
    def fit(step, model, on_exception):
        try:
            train(step, model)
        except BaseException as error:
            on_exception(error)
            raise
"""


def loss_without_a_graph(model, x):
    loss = model(x).pow(2).mean()
    return {"loss": loss.detach(), "size": len(x)}  # refused for this


@torch.no_grad()  # refused for this
def loss_without_recording(model, x):
    return model(x).pow(2).mean()


def overwritten(model, x):
    hidden = model.layers(x)
    scores = model.head(hidden)
    hidden.add_(1)  # refused for this
    return scores.pow(2).mean()


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (loss_without_a_graph, "GCS401"),
        (loss_without_recording, "GCS402"),
        (overwritten, "GCS103"),
    ],
)
def test_what_torch_refuses_a_library_is_told_once_at_the_users_line(step, code):
    found = library(COMPUTED + HANDLED)
    session = gs.audit()
    session.__enter__()

    def end(error):
        session.__exit__(type(error), error, error.__traceback__)

    model = found["Model"]()
    with pytest.raises(RuntimeError):
        found["fit"](step, model, end)
    (finding,) = session.findings
    assert (finding.code, finding.severity) == (code, gs.Severity.ERROR)
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert source[finding.location.line - 1].endswith("# refused for this")
    assert all(each.location.path == __file__ for each in finding.related)


class Steps:
    """What a library calls: the loss is made in a method of a class derived from the one here."""

    def __call__(self, model, x):
        out = model(x)
        loss = self.loss_of(out)
        return (loss, out) if self is None else loss

    def loss_of(self, out):
        return out.pow(2).mean()


class StepsCut(Steps):
    def loss_of(self, out):
        return torch.tensor(out.pow(2).mean().item(), requires_grad=True) / 1  # forces


def test_a_loss_that_is_cut_in_a_method_of_a_derived_class_is_told_there():
    session = audited(StepsCut())
    (finding,) = session.findings
    assert finding.code == "GCS405"
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert source[finding.location.line - 1].endswith("# forces")
    # The object whose method it was is gone by now.
    assert session.findings == (finding,)


def test_a_module_is_called_by_the_users_name_for_it():
    my_net = TwoLayers()
    optimizer = torch.optim.SGD(my_net.body.parameters(), lr=0.01)
    with gs.audit() as session:
        library(BACKWARD)["train"](my_net, optimizer, 6)
    (finding,) = session.findings
    assert "`my_net.head.weight`" in finding.message
