"""The session: what it may be given, how it is used, and what its report says."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import top_saved_tensors_hooks
from gradcheck_suite.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("net",), {}, "model must be a torch.nn.Module or None, got str"),
        ((None, "adam"), {}, "optimizers must be torch.optim.Optimizer objects, got str"),
        ((None, 3), {}, "optimizers must be a torch.optim.Optimizer or several, got int"),
        ((), {"checksum_evry": 3}, "no option 'checksum_evry'; did you mean 'checksum_every'?"),
        ((), {"zzz": 3}, "no option 'zzz'; it knows checksum_first_steps"),
        ((), {"checksum_every": -1}, "checksum_every must be a whole number of at least 0"),
        ((), {"graph_limit": True}, "graph_limit must be a whole number of at least 2, got True"),
        ((), {"name_writers": 1}, "name_writers must be a bool, got 1"),
    ],
)
def test_bad_input_is_told_in_clear_words(arguments, options, words):
    with pytest.raises(UsageError, match=None) as info:
        gs.audit(*arguments, **options)
    assert words in str(info.value)


def train(steps=3):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.randn(3, 2)).sum().backward()
        optimizer.step()


def test_as_a_decorator_it_adds_up():
    session = gs.audit()
    watched = session(train)
    watched(2)
    watched(steps=3)
    assert session.report.summary["steps"] == 5
    assert [finding.code for finding in session.findings] == ["GCS301"]


async def coroutine():
    train(1)
    await asyncio.sleep(0)
    train(1)
    return "done"


def generator():
    train(1)
    sent = yield 1
    train(sent)
    return "done"


async def items_to_come():
    train(1)
    yield "done"
    train(1)


async def collected(items):
    return [item async for item in items][-1]


def driven(items):
    next(items)
    with pytest.raises(StopIteration) as end:
        items.send(1)
    return end.value.value


@pytest.mark.parametrize(
    ("function", "finish"),
    [
        (coroutine, asyncio.run),
        (generator, driven),
        (items_to_come, lambda items: asyncio.run(collected(items))),
    ],
)
def test_as_a_decorator_it_lasts_as_long_as_what_is_decorated(function, finish):
    session = gs.audit()
    watched = session(function)
    assert watched.__name__ == function.__name__
    assert finish(watched()) == "done"
    assert session.report.summary["steps"] == 2
    assert top_saved_tensors_hooks() is None


def test_a_generator_that_is_given_up_ends_its_audit():
    session = gs.audit()
    items = session(generator)()
    next(items)
    items.close()
    assert top_saved_tensors_hooks() is None
    assert session.report.summary["steps"] == 1


def test_audits_of_tasks_that_take_turns():
    async def job():
        with gs.audit() as session:
            for _ in range(2):
                train(1)
                await asyncio.sleep(0)
        return session.report

    async def main():
        return await asyncio.gather(job(), job())

    outer, inner = asyncio.run(main())
    assert any("opened within this one" in line for line in outer.not_covered)
    assert inner.summary["steps"] > 0
    assert top_saved_tensors_hooks() is None


def test_an_audit_that_another_thread_has_entered():
    session = gs.audit()
    entering = threading.Thread(target=session.__enter__)
    entering.start()
    entering.join()
    train(2)
    session.__exit__(None, None, None)
    assert [finding.code for finding in session.findings] == ["GCS301"]
    assert any("in other threads" in line for line in session.report.not_covered)


def test_a_recursive_decorated_function():
    session = gs.audit()

    @session
    def descend(depth):
        if depth:
            descend(depth - 1)
        train(1)

    descend(3)
    assert session.report.summary["steps"] == 4


def test_the_report_may_be_read_at_any_time():
    session = gs.audit()
    assert session.report.summary["steps"] == 0
    with session:
        train()
        assert [finding.code for finding in session.findings] == ["GCS301"]
        json.dumps(dict(session.report.summary))
    assert session.report.tool == "gradcheck-suite audit"
    assert not session.report.ok
    assert json.loads(json.dumps(dict(session.findings[0].evidence)))["count"] == 2


def test_nothing_to_look_at_is_said():
    with gs.audit() as session:
        pass
    assert session.report.ok
    assert "no backward() ran" in " ".join(session.report.not_covered)
    with gs.audit() as session:
        torch.randn(2, requires_grad=True).sum().backward()
    assert "no optimizer of torch.optim stepped" in " ".join(session.report.not_covered)


def test_disabled_hooks_are_said_to_be():
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"), gs.audit() as session:
        train(2)
    (line,) = [line for line in session.report.not_covered if "disabled" in line]
    assert line == "saved tensors: hooks on them were disabled when the audit began"
    assert session.report.summary["saved_tensors"] == 0


@pytest.mark.slow
def test_compiled_graphs_are_said_to_be_closed_to_looks():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    compiled = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with gs.audit() as session:
        for _ in range(3):
            optimizer.zero_grad()
            compiled(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()
    torch.compiler.reset()
    assert session.findings == ()
    assert [line for line in session.report.not_covered if "compiled graphs" in line]


@pytest.mark.slow
def test_graphs_that_are_too_large_to_search_are_said_to_be():
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with gs.audit() as session:
        for _ in range(2):
            optimizer.zero_grad()
            total = weight
            for _ in range(20_001):
                total = total * 1.0
            total.sum().backward()
            optimizer.step()
    said = " ".join(session.report.not_covered)
    assert session.findings == ()
    assert "what backward reaches beyond the first 20,000 nodes" in said


def test_gradients_that_may_not_be_read_are_said_to_be():
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    def steps():
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with Counting() as counting:
            for _ in range(2):
                optimizer.zero_grad()
                (weight * weight).sum().backward()
                optimizer.step()
        return counting.calls

    bare = steps()
    with gs.audit() as session:
        assert steps() == bare
    assert any("gradients of 2 steps were finite" in line for line in session.report.not_covered)


def test_a_model_on_the_meta_device():
    net = nn.Linear(3, 3, device="meta")
    with gs.audit(net) as session:
        net(torch.randn(2, 3, device="meta")).sum().backward()
    assert session.findings == ()


def test_a_large_model_on_the_meta_device():
    """All of its tensors have one address, and contents that nobody can share."""
    with torch.device("meta"):
        net = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3)))
        batch = torch.randn(2, 128)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with gs.audit(net, report=False) as session:
        for _ in range(3):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
    assert session.findings == ()
    assert any("meta" in line for line in session.report.not_covered)


def test_a_backward_in_another_thread():
    from concurrent.futures import ThreadPoolExecutor

    with gs.audit() as session, ThreadPoolExecutor(1) as pool:
        pool.submit(train, 2).result()
    assert any("other threads" in line for line in session.report.not_covered)
    assert session.report.summary["steps"] == 2


def test_a_bug_in_a_detector_never_reaches_the_program(monkeypatch):
    from gradcheck_suite.auditing.detectors.step_order.missing_zero_grad import (
        MissingZeroGradDetector,
    )

    def broken(self, event):
        raise RuntimeError("our own")

    monkeypatch.setattr(MissingZeroGradDetector, "_begin_step", broken)
    with gs.audit() as session:
        train()
    (line,) = [line for line in session.report.not_covered if "our own" in line]
    assert "MissingZeroGradDetector" in line


def test_without_writers_the_mistake_is_found_all_the_same():
    with gs.audit(name_writers=False) as session:
        h = torch.randn(4, requires_grad=True).exp()
        loss = (h * h).sum()
        h.data.zero_()
        loss.backward()
    assert {finding.code for finding in session.findings} == {"GCS104"}
    assert all("writer was not seen" in finding.message for finding in session.findings)


def test_after_max_steps_nothing_is_watched_and_all_is_put_back():
    before = torch.Tensor.add_
    with gs.audit(max_steps=2) as session:
        train(5)
        assert top_saved_tensors_hooks() is None
    assert torch.Tensor.add_ is before
    assert session.report.summary["steps"] == 2
    assert [finding.code for finding in session.findings] == ["GCS301"]
    assert "what ran after the first 2 steps" in session.report.not_covered
    with session:
        assert torch.Tensor.add_ is before


def test_audits_that_end_out_of_order_put_everything_back():
    before = torch.Tensor.add_
    outer, inner = gs.audit(), gs.audit()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    train(2)
    inner.__exit__(None, None, None)
    assert torch.Tensor.add_ is before
    assert top_saved_tensors_hooks() is None
    assert inner.report.summary["steps"] == 2
    assert [finding.code for finding in inner.findings] == ["GCS301"]


def test_an_audit_that_is_entered_twice_is_one():
    with gs.audit() as session, session:
        train(2)
    assert session.report.summary["steps"] == 2
    assert top_saved_tensors_hooks() is None


def test_tensors_that_are_freed_under_us():
    with gs.audit() as session:
        for _ in range(3):
            net = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            loss = net(torch.randn(3, 2)).sum()
            loss.backward()
            optimizer.step()
            for parameter in net.parameters():
                parameter.grad.untyped_storage().resize_(0)
            del net, optimizer, loss
    assert not [line for line in session.report.not_covered if "bug in" in line]


def test_an_audit_of_nothing_makes_no_detectors_and_finds_nothing():
    with gs.audit() as session:
        torch.ones(2).add_(1)
    assert session._detectors == ()
    assert session.findings == ()
    assert session.report.not_covered == ("gradients: no backward() ran inside the audit",)


def test_an_audit_entered_again_hears_each_event_once():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    session = gs.audit()
    with session:
        pass
    with session:
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
    (finding,) = session.findings
    assert finding.rule == "missing-zero-grad"
    assert finding.evidence["count"] == 2


def test_an_indexed_assignment_is_noted_though_nothing_else_has_happened():
    with gs.audit() as session:
        x = torch.zeros(3, requires_grad=True) * 1
        x[0] = 1.0
    assert session._detectors
    assert session._recorder.bus.failures == []


def test_a_check_of_gradients_is_no_training():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps(count):
        for _ in range(count):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    with gs.audit(model, optimizer) as session:
        steps(1)
        assert gs.check_gradients(model, torch.ones(1, 2)).ok
        assert gs.localize(model, torch.ones(1, 2)).ok
        steps(2)
    assert session.report.summary["backwards"] == 3
    assert session.report.summary["steps"] == 3
    assert [finding.rule for finding in session.findings] == ["missing-zero-grad"]
    assert session.report.not_covered == ()


def test_a_check_that_fails_leaves_the_audit_on():
    def refuses(x):
        raise ValueError("no")

    with gs.audit() as session:
        with pytest.raises(ValueError, match="no"):
            gs.check_gradients(refuses, torch.ones(2, requires_grad=True))
        torch.ones(2, requires_grad=True).sum().backward()
    assert session.report.summary["backwards"] == 1


def test_an_audit_inside_of_a_checked_function_goes_back_to_the_outer_one():
    def audited(x):
        with gs.audit():
            return x.sin()

    with gs.audit() as session:
        assert gs.check_gradients(audited, torch.ones(2, requires_grad=True)).ok
        torch.ones(2, requires_grad=True).sum().backward()
    assert session.report.summary["backwards"] >= 1
    assert top_saved_tensors_hooks() is None
