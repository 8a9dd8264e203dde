"""Programs that torch.compile compiles: no graph and no break is added, and mistakes are found."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F  # noqa: N812 - as programs have it

import gradcheck_suite as gs

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Dropout(0.1)),
        nn.Linear(8, 3),
    )


def batch(rows=6):
    return torch.randn(rows, 8), torch.randint(0, 3, (rows,))


def train_compiled(sizes=(6,), **options):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, **options)
    for index in range(12):
        x, y = batch(sizes[index % len(sizes)])
        optimizer.zero_grad()
        F.cross_entropy(compiled(x), y).backward()
        optimizer.step()
    return model


def eager():
    return train_compiled(backend="eager")


def whole():
    return train_compiled(backend="aot_eager", fullgraph=True)


def dynamic():
    return train_compiled(backend="aot_eager", dynamic=True, sizes=(6, 5, 4))


def other_sizes():
    return train_compiled(backend="eager", sizes=(6, 5, 4))


def inductor():
    return train_compiled(backend="inductor")


def compiled_step():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    @torch.compile(backend="aot_eager", fullgraph=False)
    def step():
        optimizer.step()

    for _ in range(8):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        step()
        schedule.step()
        optimizer.zero_grad()
    return model


def backward_inside():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.compile(backend="aot_eager")
    def losses(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(8):
        losses(*batch())
        optimizer.step()
        optimizer.zero_grad()
    return model


def all_of_a_step():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.compile(backend="eager")
    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(8):
        step(*batch())
    return model


def break_in_a_loop():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.compile(backend="eager")
    def epoch(batches):
        for x, y in batches:
            torch._dynamo.graph_break()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    for _ in range(3):
        epoch([batch() for _ in range(4)])
    return model


def evaluation():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    compiled = torch.compile(model, backend="eager")
    for _ in range(10):
        compiled.train()
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(compiled(x), y).backward()
        optimizer.step()
        compiled.eval()
        with torch.no_grad():
            compiled(x)
    return model


def writes_and_regions():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.compile(backend="eager")
    def losses(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = F.dropout(model(x), 0.1, training=True)
        hidden = hidden.float()
        hidden.add_(1)
        hidden += 1
        hidden[0] = 0
        return F.cross_entropy(hidden, y)

    for _ in range(8):
        optimizer.zero_grad()
        losses(*batch()).backward()
        optimizer.step()
    return model


def traces(program):
    """Return the bits that a program trains, and what dynamo has counted meanwhile."""
    torch._dynamo.reset()
    counters.clear()
    state = program().state_dict()
    bits = [each.numpy().tobytes() for each in state.values()]
    # Of a function that dynamo leaves alone, the words tell whether it is called or inlined.
    return bits, dict(counters["stats"]), sorted(counters["graph_break"].values())


@pytest.mark.parametrize(
    "program",
    [
        *(eager, whole, dynamic, other_sizes, compiled_step, backward_inside, all_of_a_step),
        *(break_in_a_loop, evaluation, writes_and_regions),
        pytest.param(inductor, marks=pytest.mark.slow),
    ],
)
def test_an_audit_adds_no_graph_and_no_break_and_changes_no_bit(program):
    bare = traces(program)
    with gs.audit(report=False) as session:
        audited = traces(program)
    assert audited == bare
    assert [each.code for each in session.findings] == []


def test_no_function_of_ours_is_taken_up_where_dynamo_takes_up_every_frame():
    seen = []

    def backend(graph, _example_inputs):
        seen.extend(each.meta.get("stack_trace") or "" for each in graph.graph.nodes)
        return graph.forward

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.compile(backend=backend)
    def epoch():
        for _ in range(3):
            torch._dynamo.graph_break()
            optimizer.zero_grad()
            F.cross_entropy(model(batch()[0]), batch()[1]).backward()
            optimizer.step()

    with gs.audit(report=False):
        epoch()
    assert any("test_compiled_programs" in each for each in seen)
    assert [each for each in seen if "gradcheck_suite" in each] == []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Detached(Net):
    def forward(self, x):
        return self.head(self.body(x).detach())  # cut


class SwitchedOff(Net):
    def forward(self, x):
        with torch.no_grad():  # cut
            x = self.body(x)
        return self.head(x)


class LeftOut(Net):
    def forward(self, x):  # cut
        return self.head(x)


def train_compiled_part(kind, compile_it):
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = compile_it(model)
    with gs.audit(report=False) as session:
        for _ in range(6):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(call(x), y).backward()
            optimizer.step()
    return session


@pytest.mark.parametrize(
    "compile_it",
    [
        lambda model: torch.compile(model, backend="aot_eager"),
        lambda model: torch.compile(model, backend="eager"),
        lambda model: model.compile(backend="aot_eager") or model,
    ],
    ids=["aot", "eager", "method"],
)
@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        (Detached, "GCS401", "is cut by `.detach()`"),
        (SwitchedOff, "GCS402", "while recording is switched off"),
        (LeftOut, "GCS403", ".body` is not called, or"),
    ],
)
def test_a_cut_in_compiled_code_is_at_the_users_line(kind, code, words, compile_it):
    (finding,) = train_compiled_part(kind, compile_it).findings
    assert (finding.code, finding.severity) == (code, gs.Severity.WARNING)
    assert words in finding.message
    lines, start = inspect.getsourcelines(kind)
    (cut,) = (number for number, line in enumerate(lines, start) if line.endswith("# cut\n"))
    assert (finding.location.path, finding.location.line) == (__file__, cut)


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_what_is_compiled_and_not_cut_is_silent(backend):
    session = train_compiled_part(Net, lambda model: torch.compile(model, backend=backend))
    assert session.findings == ()


def test_steps_that_are_compiled_are_not_covered():
    with gs.audit(report=False) as session:
        compiled_step()
    assert session.report.not_covered == (
        "steps: no optimizer of torch.optim stepped inside the audit",
    )


@pytest.mark.parametrize("trains", [True, False])
def test_transforms_of_a_model_in_evaluation_mode_are_silent(trains):
    model = network().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(parameters, x, y):
        out = torch.func.functional_call(model, parameters, (x[None],))
        return F.cross_entropy(out, y[None])

    per_sample = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
    with gs.audit(report=False) as session:
        for _ in range(6):
            model.train()
            model.eval()
            parameters = {name: each.detach() for name, each in model.named_parameters()}
            gradients = per_sample(parameters, *batch())
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name].mean(0)
            if trains:
                optimizer.step()
    assert session.findings == ()
