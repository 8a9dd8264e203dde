"""GCS104: a saved tensor is overwritten without a version bump, and the gradient is wrong."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.saved_tensors.checksums import WIDTHS


def through_data():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * 2 * h).sum()
    h.data.mul_(3)  # <- written
    loss.backward()


def through_a_view_of_data():
    h = torch.randn(2, 3, requires_grad=True).exp()
    loss = (h * 2 * h).sum()
    h.data.view(-1)[2:4].fill_(9)  # <- written
    loss.backward()


def through_indexed_data():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * 2 * h).sum()
    h.data[1] = 5.0  # <- written
    loss.backward()


def through_dlpack():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * 2 * h).sum()
    torch.from_dlpack(h.detach()).add_(1)  # <- written
    loss.backward()


def normalise(tensor):
    tensor.data.div_(tensor.data.norm())  # <- written


def inside_a_helper():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    loss = net(torch.randn(3, 4)).sum()
    normalise(net[2].weight)
    loss.backward()


NAMED = [
    through_data,
    through_a_view_of_data,
    through_indexed_data,
    through_dlpack,
    inside_a_helper,
]


@pytest.mark.parametrize("case", NAMED)
def test_the_writer_is_named_where_torch_code_wrote(audited, only, line_of, case):
    finding = only(audited(case), "GCS104")
    function = normalise if case is inside_a_helper else case
    assert finding.location.line == line_of(function, "written")
    assert "silently wrong" in finding.message
    assert "version counter unchanged" in finding.message


def through_numpy():
    array = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    layer = nn.Linear(4, 1)
    loss = layer(torch.from_numpy(array)).sum()  # <- saved
    array -= array.mean()
    loss.backward()


def through_the_storage():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()  # <- saved
    h.untyped_storage().fill_(0)
    loss.backward()


@pytest.mark.parametrize("case", [through_numpy, through_the_storage])
def test_an_unseen_writer_is_said_to_be_unseen(audited, line_of, case):
    findings = audited(case).findings
    assert {finding.code for finding in findings} == {"GCS104"}
    assert line_of(case, "saved") in {finding.location.line for finding in findings}
    assert all("the writer was not seen" in finding.message for finding in findings)


def test_new_data_under_a_saved_leaf(audited, only, line_of):
    def loop():
        weight = torch.randn(4, requires_grad=True)
        x = torch.randn(4, requires_grad=True)
        loss = (weight * x).sum()  # <- saved
        weight.data = weight.data.sign()
        loss.backward()

    finding = only(audited(loop), "GCS104")
    assert "given other memory" in finding.message
    assert finding.location.line == line_of(loop, "saved")


def test_it_is_found_on_a_later_step_that_is_checksummed(audited, only):
    def loop():
        for step in range(12):
            weight = torch.randn(4, requires_grad=True)
            optimizer = torch.optim.SGD([weight], lr=0.1)
            h = weight.exp()
            loss = (h * h).sum()
            if step == 10:
                h.data.zero_()
            loss.backward()
            optimizer.step()

    finding = only(audited(loop, checksum_first_steps=1, checksum_every=5), "GCS104")
    assert finding.evidence["first_step"] == 10


def large_loop(write, *, steps, from_step):
    """Save a tensor of half a megabyte in each step, and write into it from some step on."""
    weight = torch.randn(128_000, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        h = weight.exp()
        loss = (h * h).sum()
        if step >= from_step:
            write(h.detach().numpy())
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("step", [0, 2, 3, 9])
def test_one_element_of_much_memory_is_found_in_any_step(audited, only, step):
    def write(array):
        array[100_000] = np.nextafter(array[100_000], np.float32(9))

    session = audited(lambda: large_loop(write, steps=step + 1, from_step=step), checksum_every=1)
    assert only(session, "GCS104").evidence["first_step"] == step


@pytest.mark.parametrize("step", [5, 6, 7])
def test_what_the_sums_of_one_step_miss_the_next_step_finds(audited, only, step):
    def write(array):
        words = array.view(np.int64)
        words[[0, WIDTHS[0]]] = words[[WIDTHS[0], 0]]

    session = audited(lambda: large_loop(write, steps=step + 4, from_step=step), checksum_every=1)
    assert only(session, "GCS104").evidence["first_step"] <= step + 1


def test_memory_that_a_leaf_no_longer_has_is_free():
    array = np.ones(128_000, dtype=np.float32)
    freed = weakref.ref(array)
    weight = torch.nn.Parameter(torch.from_numpy(array))
    del array
    with gs.audit(checksum_every=1, checksum_first_steps=0) as session:
        session._recorder.saved_tensors.is_thorough = False
        loss = (weight * torch.randn(128_000, requires_grad=True)).sum()
        assert session._recorder.saved_tensors.fingerprinted
        weight.data = torch.ones(4)
        assert freed() is None
        del loss


def test_a_thousand_times_is_one_finding(audited, only):
    def loop():
        for _ in range(30):
            h = torch.randn(4, requires_grad=True).exp()
            loss = (h * h).sum()
            h.data.zero_()
            loss.backward()

    finding = only(audited(loop), "GCS104")
    assert finding.evidence["count"] >= 30


@pytest.mark.parametrize("size", [10, 40_000])
@pytest.mark.parametrize("uses", [1, 2, 3])
def test_a_tensor_that_several_ops_have_saved_is_found(audited, only, line_of, size, uses):
    def case():
        h = torch.randn(size, requires_grad=True).exp()
        loss = sum(h.square().sum() for _ in range(uses))
        h.data.mul_(3)  # <- written
        loss.backward()

    assert only(audited(case), "GCS104").location.line == line_of(case, "written")


def test_the_second_use_of_a_large_tensor_is_looked_at_by_itself_on_suspicion(audited, only):
    array = np.ones(40_000, dtype=np.float32)
    data = torch.from_numpy(array)
    weight = torch.ones(40_000, requires_grad=True)

    def case():
        for _ in range(4):
            unused = (weight * data).sum()
            loss = (weight * data).sum()
            array.__iadd__(1)
            loss.backward()
            del unused

    only(audited(case), "GCS104")


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("after", [1, 5])
def test_a_line_that_writes_again_and_again_is_named(audited, only, line_of, before, after):
    def case():
        h = torch.randn(4, requires_grad=True).exp()

        def write():
            h.data.mul_(3)  # <- written

        for _ in range(before):
            write()
        loss = h.square().sum()
        for _ in range(after):
            write()
        loss.backward()

    finding = only(audited(case), "GCS104")
    assert finding.location.line == line_of(case, "written")
    assert "overwritten by mul_()" in finding.message


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_every_dtype_is_read(audited, dtype):
    def loop():
        h = torch.randn(5, dtype=dtype, requires_grad=True) * 1
        loss = (h * h).sum().abs()
        h.data.mul_(2)
        loss.backward()

    assert {finding.code for finding in audited(loop).findings} == {"GCS104"}


def test_batch_norm_in_evaluation_mode_does_use_its_statistics(audited):
    def loop():
        norm = nn.BatchNorm1d(4).eval()
        out = norm(torch.randn(3, 4, requires_grad=True))
        norm.train()
        norm(torch.randn(5, 4))
        out.sum().backward()

    findings = audited(loop).findings
    assert {finding.code for finding in findings} == {"GCS104"}
    assert "`running_mean`" in findings[0].message


def corrupted_but_never_used():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()
    h.data.zero_()
    del loss


def written_and_put_back():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()
    kept = h.data.clone()
    h.data.zero_()
    h.data.copy_(kept)
    loss.backward()


def written_after_backward():
    layer = nn.Linear(4, 1)
    buffer = np.zeros((3, 4), dtype=np.float32)
    for step in range(4):
        buffer[...] = step
        layer(torch.from_numpy(buffer)).sum().backward()


def refilled_while_an_old_output_lives():
    layer = nn.Linear(4, 1)
    buffer = np.ones((3, 4), dtype=np.float32)
    kept = layer(torch.from_numpy(buffer))
    buffer += 1
    layer(torch.from_numpy(buffer)).sum().backward()
    del kept


def refilled_between_two_uses_of_a_large_tensor():
    array = np.ones(40_000, dtype=np.float32)
    data = torch.from_numpy(array)
    weight = torch.ones(40_000, requires_grad=True)
    old = (weight * data).sum()
    array += 1
    (weight * data).sum().backward()
    return old


def running_statistics():
    norm = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True))
    (norm(torch.randn(2, 1, 5, 5)).mean() + norm(torch.randn(2, 1, 5, 5)).mean()).backward()


def noise_drawn_by_the_op():
    nn.RReLU()(torch.randn(4, requires_grad=True) * 2).sum().backward()


def workspace_of_a_fused_kernel():
    lstm, state = nn.LSTM(3, 4), None
    for _ in range(3):
        out, state = lstm(torch.randn(2, 1, 3), state)
        out.sum().backward(retain_graph=True)


def moving_average_after_the_step():
    net, average = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        x = torch.randn(2, 4)
        (net(x) - average(x)).pow(2).sum().backward()
        optimizer.step()
        for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
            slow.data.mul_(0.9).add_(fast.data, alpha=0.1)


def same_contents_in_other_memory():
    weight = torch.randn(4, requires_grad=True)
    loss = (weight * torch.randn(4, requires_grad=True)).sum()
    weight.data = weight.data.clone()
    loss.backward()


def freed_and_gathered_storage():
    weight = torch.randn(4, requires_grad=True)
    loss = (weight * torch.randn(4, requires_grad=True)).sum()
    kept, storage = weight.detach().clone(), weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    weight.data.copy_(kept)
    loss.backward()


@pytest.mark.parametrize(
    "case",
    [
        corrupted_but_never_used,
        written_and_put_back,
        written_after_backward,
        refilled_while_an_old_output_lives,
        refilled_between_two_uses_of_a_large_tensor,
        running_statistics,
        noise_drawn_by_the_op,
        workspace_of_a_fused_kernel,
        moving_average_after_the_step,
        same_contents_in_other_memory,
        freed_and_gathered_storage,
    ],
)
def test_nothing_is_said_of_correct_code(audited, case):
    assert audited(case, checksum_every=1).findings == ()


def test_what_cannot_be_read_is_not_covered_and_does_not_crash(audited):
    def loop():
        dense = torch.randn(4, 3, requires_grad=True)
        sparse = torch.eye(4).to_sparse()
        torch.sparse.mm(sparse, dense).sum().backward()
        meta = torch.randn(3, device="meta", requires_grad=True)
        (meta * meta).sum().backward()
        expanded = torch.randn(1, 3, requires_grad=True).expand(5, 3)
        (expanded * expanded.t().t()).sum().backward()
        empty = torch.randn(0, 3, requires_grad=True)
        (empty * empty).sum().backward()

    session = audited(loop)
    assert session.findings == ()
    assert any("cannot be read" in line for line in session.report.not_covered)
