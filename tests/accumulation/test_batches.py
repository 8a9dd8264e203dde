"""How a batch is cut into micro-batches."""

from __future__ import annotations

import dataclasses
from collections import UserDict, namedtuple

import torch

from gradcheck_suite.accumulation.batches import copied, micro_batches

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    weight: torch.Tensor
    names: tuple[str, ...]
    number: int = 3


def second_of(batch, number=2):
    return micro_batches(batch, number, None)[1]


def test_tensors_are_cut_and_all_else_goes_along():
    x = torch.arange(4)
    assert second_of(x).tolist() == [2, 3]
    assert second_of((x, "text", torch.ones(3), torch.tensor(1.0)))[1:2] == ("text",)
    cut = second_of({"x": x, "all": torch.ones(3), "none": None})
    assert (cut["x"].tolist(), len(cut["all"]), cut["none"]) == ([2, 3], 3, None)


def test_containers_keep_their_type():
    x = torch.arange(4)
    assert second_of(Pair(x, x + 1)).y.tolist() == [3, 4]
    cut = second_of(Batch(x, torch.ones(3), ("a", "b", "c", "d")))
    assert (cut.x.tolist(), len(cut.weight), cut.names, cut.number) == ([2, 3], 3, ("c", "d"), 3)
    assert second_of(UserDict(x=x))["x"].tolist() == [2, 3]
    assert isinstance(second_of(UserDict(x=x)), UserDict)
    assert second_of([x, x])[0].tolist() == [2, 3]


def test_lists_of_samples_are_cut_but_two_columns_of_two_are_none():
    x = torch.arange(2)
    boxes = [{"box": torch.ones(5, 4)}, {"box": torch.zeros(1, 4)}]
    _, (cut,) = second_of((x, boxes))
    assert len(cut["box"]) == 1
    (cut,) = second_of([torch.ones(2, 3), torch.ones(5, 3)])
    assert len(cut) == 5
    assert [each.tolist() for each in second_of([x, x + 1])] == [[1], [2]]


def test_a_function_of_the_user_cuts_in_its_way():
    parts = micro_batches(torch.arange(5), 2, lambda batch, _: [batch[:3], batch[3:]])
    assert [len(part) for part in parts] == [3, 2]


def test_copies_share_nothing_and_require_what_they_did():
    x = torch.ones(2, requires_grad=True)
    (twin,) = copied((x,))
    assert twin.requires_grad
    assert twin.data_ptr() != x.data_ptr()
