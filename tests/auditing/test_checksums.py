"""Fingerprints notice every edit and read every shape."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite.auditing.checksums import BLOCK, COPIED, SMALL, fingerprint, same_content

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


@given(
    size=st.integers(2, 9000),
    seed=st.integers(0, 10**6),
    edit=st.sampled_from(["one ulp", "negate", "flip", "swap", "zero", "scale"]),
    most_copied=st.sampled_from([SMALL, COPIED]),
)
@settings(max_examples=120, deadline=None)
def test_every_edit_shows(size, seed, edit, most_copied):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(size, generator=generator)
    before = tensor.clone()
    taken = fingerprint(tensor, most_copied)
    assert taken is not None
    place = seed % (size - 1)
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
    changed = not torch.equal(tensor, before)
    assert same_content(taken, tensor) is not changed


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


def test_what_has_no_readable_memory_has_no_fingerprint():
    freed = torch.randn(4)
    freed.untyped_storage().resize_(0)
    for tensor in (torch.eye(3).to_sparse(), torch.randn(3, device="meta"), freed):
        assert fingerprint(tensor) is None
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    assert fingerprint(conjugate) is not None
