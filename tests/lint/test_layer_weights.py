"""The classes of torch.nn that the linter takes for layers without weights have none."""

from __future__ import annotations

import pytest
from torch import nn

from gradcheck_lint.analyses.layers import WITHOUT_WEIGHTS

_ARGUMENTS = ((), (2,), (2, 2), (0.1, 0.2), ((2, 2), 2), (1, (2, 2)))


def _made(name):
    for arguments in _ARGUMENTS:
        try:
            return getattr(nn, name)(*arguments)
        except (TypeError, ValueError):
            continue
    return None


@pytest.mark.parametrize("name", sorted(WITHOUT_WEIGHTS))
def test_layer_has_no_parameters(name):
    made = _made(name)
    assert made is not None
    assert list(made.parameters()) == []


def test_layer_with_parameters_would_be_told():
    assert list(_made("PReLU").parameters()) != []
    assert "PReLU" not in WITHOUT_WEIGHTS
