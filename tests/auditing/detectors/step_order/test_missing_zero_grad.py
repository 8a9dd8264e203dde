"""GCS301: a gradient that a step has used is added to and used again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def test_a_loop_without_zero_grad_is_told_at_its_step(audited, only, line_of, make_net, batch):
    def loop():
        net = make_net()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(5):
            loss = net(batch()).pow(2).mean()
            loss.backward()  # <- backward
            optimizer.step()  # <- here

    finding = only(audited(loop), "GCS301")
    assert finding.rule == "missing-zero-grad"
    assert finding.location.line == line_of(loop)
    assert finding.location.path == __file__
    assert [place.location.line for place in finding.related] == [line_of(loop, "backward")]
    assert "Adam.step() used gradients of 4 of 4 parameters" in finding.message
    assert "(first in step 1)" in finding.message
    assert finding.evidence["count"] == 4
    assert "zero_grad()" in finding.hint
    assert finding.evidence["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_two_steps_are_enough(audited, only, make_net, batch):
    def loop():
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(batch()).sum().backward()
            optimizer.step()

    assert only(audited(loop), "GCS301").evidence["count"] == 1


def test_it_is_found_long_after_the_first_steps(audited, only, make_net, batch):
    def loop():
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for step in range(12):
            if step < 7:
                optimizer.zero_grad()
            net(batch()).sum().backward()
            optimizer.step()

    only(audited(loop, checksum_every=0), "GCS301")


def missing_with_clipping(net, optimizer, batch):
    net(batch()).sum().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()


def zeroed_once_per_epoch(net, optimizer, batch):
    net.batches = getattr(net, "batches", 0) + 1
    if net.batches == 1:
        optimizer.zero_grad()
    net(batch()).sum().backward()
    optimizer.step()


def accumulation_never_zeroed(net, optimizer, batch):
    for _ in range(3):
        (net(batch()).sum() / 3).backward()
    optimizer.step()


def other_model_zeroed(net, optimizer, batch):
    nn.Linear(2, 2).zero_grad()
    net(batch()).sum().backward()
    optimizer.step()


def only_some_parameters_zeroed(net, optimizer, batch):
    net[0].zero_grad()
    net(batch()).sum().backward()
    optimizer.step()


def with_create_graph(net, optimizer, batch):
    loss = net(batch()).sum()
    loss.backward(create_graph=True)
    optimizer.step()


@pytest.mark.parametrize(
    "body",
    [
        missing_with_clipping,
        zeroed_once_per_epoch,
        accumulation_never_zeroed,
        other_model_zeroed,
        only_some_parameters_zeroed,
        pytest.param(
            with_create_graph,
            marks=pytest.mark.filterwarnings("ignore:Using backward.. with create_graph"),
        ),
    ],
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_other_ways_to_forget_it(  # noqa: PLR0917
    audited, only, line_of, make_net, batch, body, kind
):
    def loop():
        net = make_net()
        optimizer = kind(net.parameters(), lr=1e-3)
        for _ in range(5):
            body(net, optimizer, batch)
        for parameter in net.parameters():
            parameter.grad = None  # a graph in .grad would be a cycle

    findings = {finding.code: finding for finding in audited(loop).findings}
    assert findings["GCS301"].location.function == body.__name__
    assert set(findings) <= {"GCS301", "GCS206"}  # the second is about create_graph


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam])
@pytest.mark.parametrize("zeroed", ["before", "by hand", "never"])
def test_sparse_gradients(audited, line_of, kind, zeroed):
    def loop():
        words = nn.Embedding(10, 4, sparse=True)
        optimizer = kind(words.parameters(), lr=0.1)
        for _ in range(5):
            if zeroed == "before":
                optimizer.zero_grad()
            elif zeroed == "by hand" and words.weight.grad is not None:
                words.weight.grad._values().zero_()
            words(torch.randint(0, 10, (8,))).square().sum().backward()
            optimizer.step()  # <- here

    findings = audited(loop).findings
    if zeroed == "never":
        (finding,) = findings
        assert finding.code == "GCS301"
        assert finding.location.line == line_of(loop)
    else:
        assert findings == ()


def test_a_discriminator_that_is_never_zeroed(audited, line_of):
    def loop():
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
        first = torch.optim.SGD(generator.parameters(), lr=1e-2)
        second = torch.optim.SGD(critic.parameters(), lr=1e-2)
        for _ in range(4):
            fake = generator(torch.randn(3, 4))
            (critic(torch.randn(3, 4)) - critic(fake.detach())).mean().backward()
            second.step()  # <- here
            first.zero_grad()
            critic(generator(torch.randn(3, 4))).mean().backward()
            first.step()

    (finding,) = audited(loop).report.at_least(Severity.WARNING)
    assert (finding.code, finding.location.line) == ("GCS301", line_of(loop))


def test_only_the_named_optimizers_are_looked_at(audited, make_net, batch):
    net, other = make_net(), make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    elsewhere = torch.optim.SGD(other.parameters(), lr=1e-3)

    def loop():
        for _ in range(3):
            net(batch()).sum().backward()
            optimizer.step()

    assert audited(loop, optimizers=elsewhere).findings == ()
    assert len(audited(loop, optimizers=[optimizer, elsewhere]).findings) == 1


def test_an_lbfgs_closure_without_zero_grad(audited, only, make_net, batch):
    def loop():
        net = make_net()
        optimizer = torch.optim.LBFGS(net.parameters(), lr=1e-3, max_iter=2)
        data = batch()

        def closure():
            loss = net(data).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    only(audited(loop), "GCS301")
