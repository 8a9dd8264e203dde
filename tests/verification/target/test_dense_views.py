"""Complex and sparse tensors are checked as the real numbers that they are made of."""

from __future__ import annotations

import pytest
import torch

from gradcheck_suite.verification import check_gradients
from gradcheck_suite.verification.target.dense_views import copied, overlaps_itself, represented


@pytest.fixture
def z():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, 3, dtype=torch.complex128, generator=generator).requires_grad_()


def squared(conjugate):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx, grad_output):
            (z,) = ctx.saved_tensors
            return 2 * grad_output * (z.conj() if conjugate else z)

    return Square


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z * z.exp(),
        lambda z: z.abs(),
        lambda z: (z * z.conj()).real.sum(),
        lambda z: z.conj().resolve_conj(),
        lambda z: z.T @ z.conj(),
        torch.fft.fft2,
        lambda z: (z.angle(), z.real, {"polar": torch.polar(z.abs(), z.angle())}),
        squared(conjugate=True),
    ],
)
def test_right_complex_gradients_pass(z, function):
    report = check_gradients(function, z)
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_real_to_complex_and_single_precision(randn):
    function = lambda x: torch.fft.rfft(x) * torch.tensor(1 + 2j)  # noqa: E731
    for dtype in (torch.float32, torch.float64):
        (verdict,) = check_gradients(function, randn(6, dtype=dtype)).verdicts
        assert verdict.status == "pass"


def test_a_missing_conjugate_is_wrong(z):
    report = check_gradients(squared(conjugate=False), z)
    assert [finding.code for finding in report.findings] == ["GCS601"]


def test_complex_parameters_and_casts(z):
    class Rotate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = torch.nn.Parameter(torch.tensor([1 + 2j, 0.5 - 1j, 2j]))

        def forward(self, z):
            return z * self.turn

    single = z.detach().to(torch.complex64).requires_grad_()
    report = check_gradients(Rotate(), single)
    assert [verdict.status for verdict in report.verdicts] == ["pass", "pass"]
    assert report.summary["dtype"] == "native (complex64)"
    report = check_gradients(Rotate(), single, dtype="float64")
    assert max(verdict.evidence["relative_tolerance"] for verdict in report.verdicts) < 1e-6


LAYOUTS = [
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
]


def sparse_input(layout, dtype=torch.float64):
    dense = torch.tensor([[0.0, 2.0, -1.0], [1.5, 0.0, 0.0]], dtype=dtype)
    return dense.to_sparse(layout=layout).requires_grad_()


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_inputs_are_checked_at_their_values(layout, randn):
    report = check_gradients(lambda s, d: s @ d, (sparse_input(layout), randn(3, 2)))
    assert report.findings == ()
    assert [verdict.status for verdict in report.verdicts] == ["pass", "pass"]
    (line,) = report.not_covered
    name = str(layout).removeprefix("torch.")
    assert line.startswith(f"`s` is {name}: its specified values were moved")


def test_sparse_outputs_complex_values_and_uncoalesced_inputs():
    indices = torch.tensor([[0, 0, 1], [1, 1, 0]])
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    twice = torch.sparse_coo_tensor(indices, values, (2, 2), check_invariants=False)
    twice.requires_grad_()
    report = check_gradients(lambda s: (s * 3, torch.sparse.sum(s)), twice)
    assert [verdict.status for verdict in report.verdicts] == ["pass", "pass"]
    twisted = sparse_input(torch.sparse_coo, torch.complex128)
    (verdict,) = check_gradients(lambda s: s.to_dense() ** 2, twisted).verdicts
    assert verdict.status == "pass"


def test_a_wrong_gradient_of_a_sparse_input_is_found(randn):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, sparse, dense):
            ctx.save_for_backward(dense)
            return sparse.detach() @ dense

        @staticmethod
        def backward(ctx, grad_output):
            (dense,) = ctx.saved_tensors
            return grad_output @ dense.T * 1.01, None

    report = check_gradients(Product, (sparse_input(torch.sparse_coo), randn(3, 2).detach()))
    assert [finding.code for finding in report.findings] == ["GCS601"]


def test_a_sparse_gradient_of_a_dense_parameter_is_read(randn):
    table = torch.nn.Embedding(5, 3, sparse=True, dtype=torch.float64)
    report = check_gradients(table, torch.tensor([1, 3, 3]))
    assert [verdict.status for verdict in report.verdicts] == ["pass"]


def test_an_other_layout_is_not_covered(randn):
    given = torch.randn(2, 3).to_mkldnn().requires_grad_()
    report = check_gradients(lambda m, x: m.to_dense().double() * x, (given, randn(2, 3)))
    assert "input `m` is _mkldnn, which can't be checked" in report.not_covered[0]


@pytest.mark.parametrize(
    "given",
    [
        torch.arange(12.0).view(3, 4),
        torch.arange(12.0).view(3, 4).T,
        torch.arange(24.0).view(3, 8)[:, 1::2],
        torch.arange(12.0)[5:9],
        torch.arange(6.0)[2],
        torch.empty(0, 3),
    ],
)
def test_copies_keep_strides_and_offset(given):
    copy = copied(given)
    assert torch.equal(copy, given)
    assert (copy.stride(), copy.storage_offset()) == (given.stride(), given.storage_offset())
    assert copy.untyped_storage().data_ptr() != given.untyped_storage().data_ptr() or not len(given)
    other = copied(torch.ones_like(given), given)
    assert other.stride() == given.stride()
    assert bool((other == 1).all())


def test_a_slice_of_something_large_is_copied_by_itself():
    part = torch.zeros(10**5)[5:10]
    assert copied(part).untyped_storage().nbytes() == part.numel() * part.element_size()


def test_the_function_is_given_the_layout_of_the_input(randn):
    seen = []

    def look(x):
        seen.append((x.stride(), x.storage_offset()))
        return x * 2

    given = randn(4, 6).detach()[1:, ::2].requires_grad_()
    assert check_gradients(look, given, variations=()).ok
    assert set(seen) == {((6, 2), 6)}


def test_an_expanded_input_is_checked_dense_and_said(randn):
    row = randn(3).detach().expand(4, 3).requires_grad_()
    report = check_gradients(torch.sin, row)
    assert report.ok
    assert "overlaps itself in memory (expanded)" in report.not_covered[0]
    assert overlaps_itself(row)
    assert not overlaps_itself(row[:1])


def test_the_way_back_is_exact(z):
    values, representation = represented(z)
    assert torch.equal(representation.rebuild(values), z)
    assert representation.is_complex
    assert not representation.is_plain
