"""Scripts that ask for a GPU without asking whether there is one stay on the CPU."""
# It takes whatever its untyped original takes.
# ruff: noqa: ANN001, ANN002, ANN003, ANN202, ARG001

from __future__ import annotations

import torch


def _here(thing, *args, **kwargs):
    return thing


def _nothing(name):
    def nothing(*args, **kwargs):
        return None

    nothing.__name__ = name
    return nothing


torch.Tensor.cuda = torch.nn.Module.cuda = _here
torch.cuda.is_available = lambda: True
for _name in ("set_device", "manual_seed", "manual_seed_all", "synchronize", "empty_cache"):
    setattr(torch.cuda, _name, _nothing(_name))
