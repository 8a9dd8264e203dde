"""Memory is read as it is, whatever its size and however many sizes there are."""

from __future__ import annotations

import ctypes

from hypothesis import given
from hypothesis import strategies as st

from gradcheck_suite._memory import compare_memory, copy_of_memory, memory_of_size


@given(st.binary(max_size=5_000))
def test_all_ways_to_read_memory_agree(content: bytes) -> None:
    buffer = ctypes.create_string_buffer(content, len(content) + 1)
    address, size = ctypes.addressof(buffer), len(content)
    assert memory_of_size[size](address).raw == content
    assert copy_of_memory(address, size) == content
    assert compare_memory(content, address, size) == 0


def test_a_changed_byte_shows() -> None:
    buffer = ctypes.create_string_buffer(b"a\0b\0c", 5)
    address = ctypes.addressof(buffer)
    before = memory_of_size[5](address).raw
    buffer[4] = b"d"
    assert memory_of_size[5](address).raw == b"a\0b\0d" != before
    assert compare_memory(before, address, 5) != 0


def test_sizes_without_end_are_read_and_few_are_kept() -> None:
    content = bytes(range(256)) * 8
    buffer = ctypes.create_string_buffer(content, len(content))
    address = ctypes.addressof(buffer)
    for size in range(len(content)):
        assert memory_of_size[size](address).raw == content[:size]
    assert len(memory_of_size) < len(content) // 2
