"""torch.compile without a C++ compiler: the same tracing, run eagerly."""

from __future__ import annotations

import functools

import torch

torch.compile = functools.partial(torch.compile, backend="aot_eager")
