from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def wrong():
    """The bank of Functions whose backward is wrong, as a module."""
    path = Path(__file__).with_name("wrong_functions.py")
    spec = importlib.util.spec_from_file_location("wrong_functions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def randn():
    """Draw normal float64 tensors that require grad, the same in every test."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape, dtype=torch.float64, requires_grad=True):
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
        return drawn.requires_grad_(requires_grad)

    return draw


@pytest.fixture
def statuses():
    """Return the verdicts of a report as {(output, input): status}."""

    def table(report):
        return {(verdict.output, verdict.input): verdict.status for verdict in report.verdicts}

    return table
