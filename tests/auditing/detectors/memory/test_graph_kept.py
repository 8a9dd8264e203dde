"""GCS201 and GCS202: graphs of finished backwards that the program keeps."""

from __future__ import annotations

import collections
import gc
import sys
import weakref

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.object_names.heap import Heap, SearchEndedError

HISTORY: list[torch.Tensor] = []


def steps(count, net=None):
    net = net or nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(count):
        optimizer.zero_grad()
        out = net(torch.randn(3, 4))
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()
        yield step, out, loss


def list_of_losses():
    losses = []
    for _, _, loss in steps(6):
        losses.append(loss)  # <- here


def list_of_outputs():
    outputs = []
    for step, out, _ in steps(6):
        outputs.append((step, out))  # <- here


def dict_of_losses():
    history = {}
    for step, _, loss in steps(6):
        history[step] = loss  # noqa: PERF403  # <- here


def list_inside_a_dict():
    log = collections.defaultdict(list)
    for _, _, loss in steps(6):
        log["train"].append(loss)  # <- here


def losses_of_grad():
    net, losses = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), []
    for _ in range(20):
        loss = net(torch.randn(3, 4)).pow(2).mean()
        gradients = torch.autograd.grad(loss, net.parameters())
        losses.append(loss)  # <- here
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=1e-3)


def losses_of_backward_for_inputs():
    head, losses = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    for _ in range(20):
        loss = head(torch.randn(3, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(inputs=list(head.parameters()))
        losses.append(loss)  # <- here
        optimizer.step()


def sum_over_fast_weights():
    net, total = nn.Linear(8, 1, bias=False), 0.0
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(12):
        (gradient,) = torch.autograd.grad(net(torch.randn(4, 8)).square().mean(), net.parameters())
        fast = net.weight - 0.1 * gradient
        loss = (torch.randn(4, 8) @ fast.t()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss  # <- here


def unbounded_deque():
    losses = collections.deque()
    for _, _, loss in steps(6):
        losses.append(loss)  # <- here


def running_sum():
    total = 0.0
    for _, _, loss in steps(7):
        total += loss  # <- here


def running_sum_spelled_out():
    total = torch.zeros(())
    for _, _, loss in steps(7):
        total = total + loss  # <- here


class Meter:
    def __init__(self):
        self.values = []
        self.total = 0.0

    def take_in_a_loss(self, value):
        self.values.append(value)

    def add_a_loss(self, value):
        self.total += value


def attribute_list():
    meter = Meter()
    for _, _, loss in steps(6):
        meter.take_in_a_loss(loss)  # <- here


def attribute_sum():
    meter = Meter()
    for _, _, loss in steps(7):
        meter.add_a_loss(loss)  # <- here


def module_global():
    for _, _, loss in steps(6):
        HISTORY.append(loss)  # <- here


def keep(value):
    return lambda: value


def closures():
    callbacks = []
    for _, _, loss in steps(6):
        callbacks.append(keep(loss))  # <- here


def fail(out):
    doubled = out * 2
    raise ValueError(f"shape {tuple(doubled.shape)}")


def exceptions():
    errors = []
    for _, out, _ in steps(6):
        try:
            fail(out)
        except ValueError as error:  # noqa: PERF203
            errors.append(error)  # <- here


CASES = {
    list_of_losses: ("list `losses` in list_of_losses()", None),
    losses_of_grad: ("list `losses` in losses_of_grad()", None),
    losses_of_backward_for_inputs: ("list `losses` in losses_of_backward_for_inputs()", None),
    sum_over_fast_weights: ("sum `total` in sum_over_fast_weights()", None),
    list_of_outputs: ("list `outputs` in list_of_outputs()", None),
    dict_of_losses: ("dict `history` in dict_of_losses()", None),
    list_inside_a_dict: ('list `log["train"]` in list_inside_a_dict()', None),
    unbounded_deque: ("deque `losses` in unbounded_deque()", None),
    running_sum: ("sum `total` in running_sum()", None),
    running_sum_spelled_out: ("sum `total` in running_sum_spelled_out()", None),
    attribute_list: ("list `meter.values` in attribute_list()", None),
    attribute_sum: ("sum `meter.total` in attribute_sum()", None),
    module_global: ("list `HISTORY` in module ", None),
    closures: ("list of closures `callbacks` in closures()", None),
    exceptions: ("list of exceptions `errors` in exceptions()", None),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.sampled(every=5)
def test_the_holder_and_the_line_that_feeds_it_are_named(audited, only, line_of, case, request):
    if case is module_global:
        request.getfixturevalue("objects_of_modules")
    request.getfixturevalue("monkeypatch").setattr(sys.modules[__name__], "HISTORY", [])
    subject, place = CASES[case]
    finding = only(audited(case), "GCS201")
    assert finding.message.startswith(subject), finding.message
    assert finding.location.line == (line_of(*place) if place else line_of(case))
    assert finding.evidence["graphs"] >= 4
    assert "detach" in finding.hint or "error" in finding.hint


def test_five_steps_are_enough(audited, only):
    def loop():
        losses = []
        for _, _, loss in steps(5):
            losses.append(loss)

    assert "the graphs of 4 backwards" in only(audited(loop), "GCS201").message


def test_it_is_certain_while_the_loop_still_runs(audited):
    losses = []
    with gs.audit() as session:
        for step, _, loss in steps(40):
            losses.append(loss)
            if step == 1:
                assert session.findings == ()
            if step >= 4:
                # The source has one statement that adds to the list, and none that takes away.
                assert session.findings[0].evidence["graphs"] >= step


def test_what_may_be_a_window_is_told_when_it_is_too_long_for_one():
    window = collections.OrderedDict()
    with gs.audit() as session:
        for step, _, loss in steps(40):
            window[step] = loss
            if step == 20:
                assert session.findings == ()
        assert [finding.code for finding in session.findings] == ["GCS201"]


def test_a_holder_that_grows_on_is_told_once(audited, only):
    def loop():
        losses = []
        for _, _, loss in steps(80):
            losses.append(loss)

    finding = only(audited(loop), "GCS201")
    assert finding.evidence["graphs"] >= 64


def test_a_list_that_has_no_name_before_it_is_full_is_told_once_by_its_name(audited, only):
    def yielding():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(40):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss

    losses = []

    def train():
        losses.append(list(yielding()))

    finding = only(audited(train), "GCS201")
    assert "list" in finding.message
    assert "(32 long)" not in finding.message


def test_it_is_told_when_an_exception_ends_the_loop():
    session = gs.audit()
    losses = []

    def loop():
        for step, _, loss in steps(9):
            losses.append(loss)
            1 / (7 - step)

    with pytest.raises(ZeroDivisionError), session:
        loop()
    assert [finding.code for finding in session.findings] == ["GCS201"]


def only_the_last_loss():
    kept = None
    for _, _, loss in steps(50):
        kept = loss
    return kept


def best_and_first_and_last():
    kept = {}
    for step, _, loss in steps(50):
        kept.setdefault("first", loss)
        kept["last"] = loss
        if step % 7 == 0:
            kept["best"] = loss


def last_loss_of_each_task():
    last = {}
    for step, _, loss in steps(40):
        last[step % 6] = loss


def sliding_window():
    recent = []
    for _, _, loss in steps(40):
        recent = [*recent[-6:], loss]


def detached():
    losses, total = [], 0.0
    for _, _, loss in steps(50):
        losses.append(loss.detach())
        total += loss.item()


def window_of_losses():
    window = []
    for _, _, loss in steps(50):
        window.append(loss)
        if len(window) == 8:
            torch.stack(window).mean().item()
            window.clear()


def bounded_deque():
    recent = collections.deque(maxlen=10)
    for _, _, loss in steps(50):
        recent.append(loss)


def accumulated_before_backward():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(6):
        losses = [net(torch.randn(3, 4)).pow(2).mean() for _ in range(12)]
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()


def replay_buffer():
    memory = []
    for _, out, _ in steps(50):
        memory.append((torch.randn(4), out.detach(), 1.0))


def policy_gradient():
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
    first = torch.optim.SGD(actor.parameters(), lr=1e-3)
    second = torch.optim.SGD(critic.parameters(), lr=1e-3)
    for _ in range(3):
        log_probs = []
        for _ in range(15):
            state = torch.randn(4)
            log_probs.append(actor(state).log_softmax(0)[0])
            second.zero_grad()
            critic(state).pow(2).sum().backward()
            second.step()
        first.zero_grad()
        torch.stack(log_probs).sum().backward()
        first.step()


def retained_within_the_step():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(8):
        optimizer.zero_grad()
        out = net(torch.randn(3, 4)).pow(2)
        for part in range(6):
            out[part % 3].sum().backward(retain_graph=True)
        optimizer.step()


def higher_derivatives():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    for _ in range(4):
        x = torch.randn(3, requires_grad=True)
        y = x.sin().sum()
        for _ in range(6):
            (gradient,) = torch.autograd.grad(y, x, create_graph=True)
            y = gradient.sum()
        optimizer.step()


def meta_learning():
    weight = torch.randn(3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(4):
            fast = weight
            for _ in range(10):
                loss = (torch.randn(2, 3) @ fast).pow(2).mean()
                (gradient,) = torch.autograd.grad(loss, fast, create_graph=True)
                fast = fast - 0.01 * gradient
            total = total + (torch.randn(2, 3) @ fast).pow(2).mean()
        total.backward()
        optimizer.step()


def meta_learning_by_few_steps():
    weight = torch.randn(3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(4):
            loss = (torch.randn(2, 3) @ weight).pow(2).mean()
            (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
            fast = weight - 0.01 * gradient
            total = total + (torch.randn(2, 3) @ fast).pow(2).mean()
        (total / 4).backward()
        optimizer.step()


def losses_over_shared_fast_weights():
    net = nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(12):
        totals = [0, 0]
        for _ in range(12):
            loss = net(torch.randn(4, 8)).square().mean()
            (gradient,) = torch.autograd.grad(loss, net.parameters())
            fast = net.weight - 0.1 * gradient
            inner = (torch.randn(4, 8) @ fast.t()).square().mean()
            (gradient,) = torch.autograd.grad(inner, fast)
            fast = fast - 0.1 * gradient
            for k in (0, 1):
                totals[k] += (torch.randn(4, 8) @ fast.t()).square().mean()
        optimizer.zero_grad()
        sum(totals).backward()
        optimizer.step()


def losses_kept_for_the_other_leaves():
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 1)
    for _ in range(3):
        later = []
        for _ in range(12):
            features = encoder(torch.randn(3, 4))
            loss = head(features.detach()).square().mean() + features.tanh().mean()
            torch.autograd.grad(loss, head.parameters())
            later.append(loss)
        torch.autograd.grad(sum(later), encoder.parameters())


def truncated_backpropagation():
    cell = nn.GRUCell(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=1e-3)
    hidden = torch.zeros(2, 4)
    for _ in range(10):
        for _ in range(3):
            hidden = cell(torch.randn(2, 4), hidden)
        optimizer.zero_grad()
        hidden.sum().backward()
        optimizer.step()
        hidden = hidden.detach()


def shared_trunk():
    trunk, head = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    features = trunk(torch.randn(3, 4))
    for _ in range(20):
        optimizer.zero_grad()
        head(features).sum().backward(retain_graph=True)
        optimizer.step()


@pytest.mark.parametrize(
    "case",
    [
        only_the_last_loss,
        best_and_first_and_last,
        last_loss_of_each_task,
        sliding_window,
        detached,
        window_of_losses,
        bounded_deque,
        accumulated_before_backward,
        replay_buffer,
        policy_gradient,
        retained_within_the_step,
        higher_derivatives,
        meta_learning,
        meta_learning_by_few_steps,
        losses_over_shared_fast_weights,
        losses_kept_for_the_other_leaves,
        truncated_backpropagation,
        shared_trunk,
    ],
)
def test_nothing_is_said_of_graphs_that_are_let_go(audited, case):
    # Some of them train nothing, or leave a layer out, which is another matter.
    assert not [each for each in audited(case).findings if each.code.startswith("GCS2")]


def test_what_the_latest_backward_began_with_is_no_holder(audited, monkeypatch):
    def used_up(*_):
        raise SearchEndedError("as in a process of very many objects")

    monkeypatch.setattr(Heap, "referrers", used_up)
    session = audited(losses_kept_for_the_other_leaves, graph_limit=12)
    assert session.findings == ()


def state_with_its_graph():
    cell = nn.GRUCell(4, 4)
    hidden = torch.zeros(2, 4)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    for _ in range(8):
        hidden = cell(torch.randn(2, 4), hidden)
        hidden.sum().backward(retain_graph=True)  # <- here
        optimizer.step()


def test_a_state_that_keeps_its_graph_is_another_mistake(audited, line_of):
    found = {each.code: each for each in audited(state_with_its_graph).findings}
    # Nobody trains the cell: torch would refuse to go back through weights that have changed. What
    # the optimizer owns is nobody's.
    assert set(found) == {"GCS202", "GCS307", "GCS308"}
    finding = found["GCS202"]
    assert finding.location.line == line_of(state_with_its_graph)
    assert "7 earlier backwards" in finding.message
    assert "detach()" in finding.hint


def test_asking_who_holds_them_keeps_nothing_alive():
    held = {}
    with gs.audit() as session:
        gc.disable()
        try:
            for step, _, loss in steps(12):
                held[step % 6] = loss
                if step == 6:
                    alive = weakref.ref(loss)
            del loss
            held.clear()
            assert alive() is None
        finally:
            gc.enable()
    assert session.findings == ()


def test_a_state_with_its_graph_is_found_where_no_optimizer_steps(audited, only):
    def loop():
        cell = nn.GRUCell(4, 4)
        state = torch.zeros(2, 4)
        for _ in range(8):
            state = cell(torch.randn(2, 4), state)
            state.sum().backward(retain_graph=True)
            cell.zero_grad()

    with_model = nn.GRUCell(4, 4)
    optimizer = torch.optim.SGD(with_model.parameters(), lr=0.1)

    def cleared():
        state = torch.zeros(2, 4)
        for _ in range(8):
            optimizer.zero_grad()
            state = with_model(torch.randn(2, 4), state)
            state.sum().backward(retain_graph=True)

    only(audited(cleared), "GCS202")
    # Gradients of unknown parameters prove nothing.
    assert audited(loop).findings == ()


def test_losses_of_one_unrolled_graph_that_add_up_are_no_carried_state(audited):
    def loop():
        cell = nn.GRUCell(4, 4)
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
        optimizer.zero_grad()
        state = torch.zeros(2, 4)
        for _ in range(8):
            state = cell(torch.randn(2, 4), state)
            state.sum().backward(retain_graph=True)
        optimizer.step()

    assert audited(loop).findings == ()


def history_by_name():
    net, history = nn.Linear(2, 1), {"loss": [], "shown": []}
    for _ in range(6):
        loss = net(torch.randn(3, 2)).square().mean()
        loss.backward()
        history["loss"].append(loss)  # <- here
        history["shown"].append(loss.sqrt().item())


def history_at_two_lines():
    net, history = nn.Linear(2, 1), []
    for step in range(8):
        loss = net(torch.randn(3, 2)).square().mean()
        loss.backward()
        if step % 2:
            history.append(loss)  # <- here
        else:
            history.append(2 * loss)  # <- there


class Metrics:
    def __init__(self):
        self.rows_of_the_run = {}


class Reporter:
    def __init__(self, trainer):
        self.trainer = trainer

    def add_row(self, name, value):
        self.trainer.rows_of_the_run.setdefault(name, []).append(value)


def history_of_another_object():
    net, metrics = nn.Linear(2, 1), Metrics()
    reporter = Reporter(metrics)
    for _ in range(6):
        loss = net(torch.randn(3, 2)).square().mean()
        loss.backward()
        reporter.add_row("loss", loss)  # <- here


@pytest.mark.parametrize(
    ("loop", "place"),
    [
        (history_by_name, history_by_name),
        (history_at_two_lines, history_at_two_lines),
        (history_of_another_object, history_of_another_object),
    ],
)
def test_the_line_is_one_that_can_have_added_a_graph(audited, only, line_of, loop, place):
    finding = only(audited(loop), "GCS201")
    assert finding.location.line == line_of(place)
    others = [each.location.line for each in finding.related if each.message == "or added here"]
    expected = [line_of(loop, "there")] if loop is history_at_two_lines else []
    assert others == expected


class FillsWhereItFits:
    def __init__(self):
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.kept_losses = []

    def one_step(self):
        loss = self.net(torch.randn(3, 4)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def fit_and_keep(self):
        for _ in range(40):
            loss = self.one_step()
            self.kept_losses.append(loss)  # <- here


def test_a_list_of_self_is_told_in_the_method_that_fills_it(audited, only, line_of):
    finding = only(audited(lambda: FillsWhereItFits().fit_and_keep()), "GCS201")
    assert finding.location.line == line_of(FillsWhereItFits.fit_and_keep)
    assert "list `self.kept_losses` in FillsWhereItFits.fit_and_keep() keeps" in finding.message
