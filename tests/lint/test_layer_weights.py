"""The classes of torch.nn that the linter takes for layers without weights have none."""

from __future__ import annotations

import pytest
from torch import nn

from gradcheck_lint.analyses.layers import WITHOUT_WEIGHTS

_ARGUMENTS = ((), (2,), (2, 2), (0.1, 0.2), ((2, 2), 2), (1, (2, 2)))


def _made(name):
    tried = (_made_with(name, each) for each in _ARGUMENTS)
    return next(each for each in tried if each is not None)


def _made_with(name, arguments):
    try:
        return getattr(nn, name)(*arguments)
    except (TypeError, ValueError):
        return None


@pytest.mark.parametrize("name", sorted(WITHOUT_WEIGHTS))
def test_layer_has_no_parameters(name):
    assert list(_made(name).parameters()) == []


def test_layer_with_parameters_would_be_told():
    assert list(_made("PReLU").parameters()) != []
    assert "PReLU" not in WITHOUT_WEIGHTS
