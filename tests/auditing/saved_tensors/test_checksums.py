"""Fingerprints notice every edit and read every shape."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite.auditing.saved_tensors.checksums import (
    BLOCK,
    COPIED,
    SMALL,
    WIDTHS,
    columns_of,
    fingerprint,
    same_columns,
    same_content,
)

SIZES = st.one_of(st.integers(0, 40), st.integers(1000, 1100), st.integers(4000, 9000))
DTYPES = st.sampled_from(
    [torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.bool, torch.complex64]
)


@given(size=SIZES, dtype=DTYPES, seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_an_untouched_tensor_keeps_its_fingerprint(size, dtype, seed):
    torch.manual_seed(seed)
    tensor = torch.randn(size).to(dtype)
    taken = fingerprint(tensor)
    assert taken is not None
    assert same_content(taken, tensor)
    assert same_content(taken, tensor.clone())


EDITS = st.sampled_from(["one ulp", "negate", "flip", "swap", "zero", "scale"])


def edited(tensor, edit, place):
    """Edit a tensor in place, and return whether that has changed it."""
    before = tensor.clone()
    if edit == "one ulp":
        tensor[place] = torch.nextafter(tensor[place], torch.tensor(9.0))
    elif edit == "negate":
        tensor.neg_()
    elif edit == "flip":
        tensor.copy_(tensor.flip(0))
    elif edit == "swap":
        tensor[[place, place + 1]] = tensor[[place + 1, place]]
    elif edit == "zero":
        tensor.zero_()
    else:
        tensor.mul_(1.001)
    return not torch.equal(tensor, before)


@given(
    size=st.integers(2, 9000),
    seed=st.integers(0, 10**6),
    edit=EDITS,
    most_copied=st.sampled_from([SMALL, COPIED]),
)
@settings(max_examples=120, deadline=None)
def test_every_edit_shows(size, seed, edit, most_copied):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(size, generator=generator)
    taken = fingerprint(tensor, most_copied)
    assert taken is not None
    changed = edited(tensor, edit, seed % (size - 1))
    assert same_content(taken, tensor) is not changed


@given(
    size=st.integers(5000, 30_000),
    seed=st.integers(0, 10**6),
    edit=EDITS,
    width=st.sampled_from(WIDTHS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=120, deadline=None)
def test_every_such_edit_shows_in_columns(size, seed, edit, width, dtype):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(size, generator=generator, dtype=dtype)
    taken = columns_of(tensor, width, keep=True)
    assert taken is not None
    assert taken.words is not None
    assert same_content(taken, tensor)
    changed = edited(tensor, edit, seed % (size - 1))
    assert same_content(taken, tensor) is not changed
    assert same_columns(taken, taken.words) is not changed


def test_what_one_width_misses_the_others_see():
    words = torch.arange(4 * max(WIDTHS), dtype=torch.int64)
    taken = {width: columns_of(words, width, keep=False) for width in WIDTHS}
    for width in WIDTHS:
        swapped = words.clone()
        swapped[[0, width]] = words[[width, 0]]
        seen = [each for each in WIDTHS if not same_content(taken[each], swapped)]
        assert seen == [each for each in WIDTHS if each != width]


def test_columns_are_of_memory_in_one_piece():
    base = torch.randn(300, 200)
    for whole in (base, base.t(), base[2:], base[:, :, None].expand(300, 200, 3)):
        assert columns_of(whole, BLOCK, keep=True) is not None
    lacking = torch.randn(300, 200)
    lacking.untyped_storage().resize_(1000)
    for other in (base[:, 2:], base.view(-1)[1:], base[0], torch.eye(300).to_sparse(), lacking):
        assert columns_of(other, BLOCK, keep=True) is None


def test_swapped_words_show_wherever_they_lie():
    words = torch.arange(3 * BLOCK, dtype=torch.int64)
    taken = fingerprint(words)
    assert taken is not None
    for one, other in [(0, 1), (0, BLOCK), (5, 1000), (BLOCK - 1, BLOCK)]:
        swapped = words.clone()
        swapped[[one, other]] = words[[other, one]]
        assert not same_content(taken, swapped)


def test_large_contents_are_summed_piece_by_piece():
    words = torch.arange(200 * BLOCK + 7, dtype=torch.int64)
    taken = fingerprint(words)
    assert taken is not None
    rows = words[: 200 * BLOCK].view(200, BLOCK)
    sums = [rows.sum(1), rows.sum(0), words[200 * BLOCK :]]
    assert taken == tuple(each.numpy().tobytes() for each in sums)
    for one, other in [(3, 40 * BLOCK), (0, 199 * BLOCK), (33 * BLOCK, 200 * BLOCK + 2)]:
        swapped = words.clone()
        swapped[[one, other]] = words[[other, one]]
        assert not same_content(taken, swapped)


def test_views_of_every_kind_are_read_where_they_lie():
    base = torch.randn(40, 60)
    for view in (base.t(), base[::2, 1:], base[:, :1].expand(40, 9), base[3], base[..., None]):
        taken = fingerprint(view)
        assert taken is not None
        assert same_content(taken, view)
    taken = fingerprint(base[::2])
    assert taken is not None
    base[1] = 0
    assert same_content(taken, base[::2])
    base[2] = 0
    assert not same_content(taken, base[::2])


def test_what_lies_between_the_elements_is_of_no_account():
    base = torch.randn(6, 12, requires_grad=True)
    for view in (base[:, :4], base.unflatten(1, (3, 4)).transpose(0, 2)[1:3], base[::2].t()):
        taken = fingerprint(view)
        assert taken is not None
        with torch.no_grad():
            base[1, -1] += 1
        assert same_content(taken, view)
        with torch.no_grad():
            view[-1, -1] += 1
        assert not same_content(taken, view)


def test_more_is_copied_where_there_is_room():
    tensor = torch.randn(COPIED // 8)
    assert isinstance(fingerprint(tensor, COPIED), bytes)
    assert isinstance(fingerprint(tensor), tuple)
    grown = torch.randn(COPIED)
    assert not same_content(fingerprint(tensor, COPIED), grown)


class Wrapper(torch.Tensor):
    """As a DTensor, it says that it is the CPU's, and has an address that is nobody's."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def data_ptr(self):
        return 64

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


class Named(torch.Tensor):
    """Has memory as any tensor has."""


def test_a_wrapper_of_other_tensors_is_not_read():
    wrapper = Wrapper(torch.randn(3))
    assert wrapper.is_cpu
    assert wrapper.is_contiguous()
    assert fingerprint(wrapper) is None
    assert same_content(b"", wrapper)


def test_other_subclasses_are_read_as_tensors_are():
    tensor = torch.randn(5)
    named = tensor.as_subclass(Named)
    before = fingerprint(named)
    assert before == fingerprint(tensor)
    tensor[2] += 1
    assert not same_content(before, named)


def test_what_has_no_readable_memory_has_no_fingerprint():
    freed = torch.randn(4)
    freed.untyped_storage().resize_(0)
    for tensor in (torch.eye(3).to_sparse(), torch.randn(3, device="meta"), freed):
        assert fingerprint(tensor) is None
    lacking = torch.randn(200, 300)
    lacking.untyped_storage().resize_(1000)
    assert fingerprint(lacking) is None
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    assert fingerprint(conjugate) is not None
