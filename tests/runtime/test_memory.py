"""Memory is read as it is, whatever its size, and never before somebody has asked whether it is."""

from __future__ import annotations

import ast
import ctypes
import json
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

import gradcheck_suite
from gradcheck_suite._runtime.memory import (
    compare_memory,
    copy_of_memory,
    is_readable,
    memory_of_size,
    require_memory,
)
from gradcheck_suite.errors import UsageError
from tests import warm_python


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


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def shortened(tensor):
    tensor.untyped_storage().resize_(tensor.untyped_storage().nbytes() - 1)
    return tensor


class Wrapping(torch.Tensor):
    """A tensor that stands for another, as those of sharded training do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"asked for {func}")


def fake():
    with FakeTensorMode():
        return torch.ones(3)


def values_of_sparse(change):
    sparse = torch.eye(3).to_sparse()
    change(sparse._values())
    return sparse


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3),
        lambda: torch.ones(0),
        lambda: torch.ones(()),
        lambda: torch.ones(4, 6).t()[1:, ::2],
        lambda: torch.ones(1).expand(1000),
        lambda: torch.ones(3, dtype=torch.complex64).conj(),
        lambda: torch.nn.Parameter(torch.ones(3)),
        lambda: torch.ones(3).as_subclass(torch.nn.Buffer),
        lambda: torch.eye(3).to_sparse(),
        lambda: freed(torch.ones(4))[:0],
        lambda: shortened(torch.ones(4))[:2],
    ],
)
def test_memory_that_is_there_is_readable(make):
    tensor = make()
    assert is_readable(tensor)
    require_memory(tensor, "it")


@pytest.mark.parametrize(
    "make",
    [
        lambda: freed(torch.ones(3)),
        lambda: shortened(torch.ones(3)),
        lambda: shortened(torch.ones(4, 6).t()),
        lambda: shortened(torch.ones(9)[::2]),
        lambda: freed(torch.nn.Parameter(torch.ones(3))),
        lambda: values_of_sparse(freed),
        lambda: torch.ones(3, device="meta"),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2)]),
        lambda: torch.ones(2).to_mkldnn(),
        lambda: Wrapping(torch.ones(3)),
        fake,
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
def test_what_cannot_be_read_is_told_without_a_look(make):
    tensor = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not is_readable(tensor)


def test_what_a_transform_wraps_is_not_readable():
    seen = []

    def note(x):
        seen.append(is_readable(x))
        return x.sum()

    torch.func.vmap(note)(torch.ones(3, 2))
    torch.func.grad(note)(torch.ones(3))
    torch.func.functionalize(note)(torch.ones(3))
    assert seen == [False] * 3


def test_a_check_says_what_has_no_values():
    with pytest.raises(UsageError, match=r"`x` has no values: .* takes 12 bytes, and there are 0"):
        require_memory(freed(torch.ones(3)), "`x`")


@pytest.mark.slow
def test_no_process_ends_over_memory_that_was_freed():
    program = Path(__file__).parents[1] / "data" / "freed_memory.py"
    ended = warm_python.run([program])
    assert ended.returncode == 0, ended.stderr
    statuses = json.loads(ended.stdout.splitlines()[-1])
    wrong = {way: each for way, each in statuses.items() if each != [0, 0]}
    assert len(statuses) > 20
    assert not wrong, ended.stderr


_PACKAGE = Path(gradcheck_suite.__file__).parent
_ASKS = {"has_room", "is_readable", "require_memory", "sample_of", "_can_be_summed", "_is_finite"}
_READS = {
    *("allclose", "amax", "amin", "any", "clone", "coalesce", "contiguous", "count_nonzero"),
    *("cpu", "deepcopy", "dot", "equal", "isfinite", "isinf", "isnan", "item", "max", "mean"),
    *("min", "norm", "numpy", "stack", "sum", "to_dense", "tolist", "unique", "vector_norm"),
    *("copy_of_memory", "compare_memory", "memory_of_size"),
}
_ASKED_ELSEWHERE = {
    "accumulation/comparison.py": "copies that State has made",
    "accumulation/states.py::new": "values() has asked for all that is in it",
    "auditing/detectors/connectivity/copy_left_behind.py::_are_alike": "what sample_of has copied",
    "auditing/detectors/corruption/input_written_in_place.py": "what sample_of has copied",
    "auditing/detectors/functions/function_calls.py::_look_at_saved": "states of a generator",
    "auditing/saved_tensors/checksums.py": (
        "fingerprint, columns_of and same_content, its three ways in, ask"
    ),
    "auditing/detectors/mode/initial_statistics.py::_is_unchanged": "what sample_of has copied",
    "auditing/detectors/mode/seeded_again.py::_begin_step": "states of a generator",
    "auditing/detectors/step_order/lost_state.py": "what sample_of has copied",
    "auditing/detectors/step_order/missing_zero_grad_by_hand.py": "what sample_of has copied",
    "auditing/detectors/step_order/parameter_never_moved.py::_answers": "_look has asked",
    "auditing/detectors/step_order/perturbation_left.py": "what sample_of has copied",
    "auditing/detectors/step_order/weights_not_restored.py": "what sample_of has copied",
    "auditing/distributed/step_records.py::_bytes_of": "a fingerprint, which is a copy",
    "auditing/distributed/step_records.py::_plain": "settings of an optimizer",
    "auditing/saved_tensors/pack_hooks.py::_take_fingerprint": (
        "few bytes, which an op has just read"
    ),
    "graph/recording/gradient_stats.py::_fetch": "figures",
    "graph/recording/gradient_stats.py::_numbers_in_a_row": "take has asked",
    "graph/recording/gradient_stats.py::_values": "_measure_alone has asked",
    **{
        f"graph/recording/gradient_stats.py::{figures}": "its callers have asked, or have copied"
        for figures in (
            *("_measure_any", "_measure_rows", "_queue", "_nonzero", "_nonzero_of_many"),
            *("_norm_of_many", "_rescued"),
        )
    },
}


def _name_of_read(node):
    """Return by what name an expression reads values, if it does."""
    if isinstance(node, ast.Subscript):
        name = getattr(node.value, "id", None)
        return name if name == "memory_of_size" else None
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Name):
        return function.id if function.id.endswith("_memory") else None
    is_math = getattr(getattr(function, "value", None), "id", None) in ("math", "cmath")
    name = getattr(function, "attr", None)
    return name if name in _READS and not is_math else None


def _reads_in(source):
    """Yield each function that reads values and the names by which it does; not if it asks."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    for function in functions:
        inner = {
            part
            for each in functions
            if each is not function and each in set(ast.walk(function))
            for part in ast.walk(each)
        }
        own = [part for part in ast.walk(function) if part not in inner]
        names = sorted({name for part in own if (name := _name_of_read(part)) in _READS})
        asks = any(isinstance(part, ast.Name) and part.id in _ASKS for part in own)
        if names and not asks:
            yield function.name, names


@pytest.mark.slow
def test_whoever_reads_values_asks_whether_they_are_there():
    unasked = {}
    used = set()
    for room in ("accumulation", "auditing", "graph"):
        for path in sorted((_PACKAGE / room).rglob("*.py")):
            file = path.relative_to(_PACKAGE).as_posix()
            for function, names in _reads_in(path.read_text(encoding="utf-8")):
                excused = {file, f"{file}::{function}"} & _ASKED_ELSEWHERE.keys()
                used |= excused
                if not excused:
                    unasked[f"{file}::{function}"] = names
    assert not unasked, "ask gradcheck_suite._runtime.memory.is_readable before these reads"
    assert used == _ASKED_ELSEWHERE.keys(), "excuses that nothing needs any more"


def test_a_read_that_nobody_asked_for_shows():
    careless = "def look(grad):\n    return bool(grad.any())\n"
    assert list(_reads_in(careless)) == [("look", ["any"])]
    assert not list(_reads_in(careless.replace("return ", "return is_readable(grad) and ")))
