"""What kinks and curvature do to pooled slopes, against what the derivation says they do."""

from __future__ import annotations

import math

import pytest
import torch

from gradcheck_suite.verification.numerics.regression import (
    BIAS_OF_KINKS,
    RATIO,
    Regression,
    step_for,
)

STEP = 2.0**-6


def add(regression, changes, parts, bend=0.0):
    """Add a probe: its change and the part of each variable at each step, and a squared bend."""
    return regression.add(
        torch.tensor(changes, dtype=torch.float64)[:, None, None],
        torch.tensor(parts, dtype=torch.float64).T[..., None, None],
        torch.tensor([bend], dtype=torch.float64),
    )


def pooled(function, gradient, *, factor=1.0, entries=60, probes=200, step=STEP):
    """Pool probes of a sum of elementwise outputs at points drawn anew for every probe."""
    generator = torch.Generator().manual_seed(12)
    regression = Regression(independent=True)
    for _ in range(probes):
        x = torch.randn(entries, generator=generator, dtype=torch.float64)
        v, g = torch.randn(2, entries, generator=generator, dtype=torch.float64).sign()
        changes, parts, bends = [], [], []
        for h in (step, RATIO * step):
            high, low = function(x + h * v), function(x - h * v)
            part = float((g * factor * gradient(x) * 2.0 * h * v).sum())
            changes.append(float((g * (high - low)).sum()))
            parts.append([part])
            bends.append(float((g * (high + low - 2.0 * function(x))).square().sum()))
        assert add(regression, changes, parts, bends[0])
    (slope,) = regression.slopes_at_two_steps()
    return slope


@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (torch.relu, lambda x: (x > 0).double()),
        (torch.abs, torch.sign),
        (lambda x: x.clamp(-0.3, 0.8), lambda x: ((x > -0.3) & (x < 0.8)).double()),
        (lambda x: torch.where(x > 0.5, 4.0 * x - 1.5, x), lambda x: 1.0 + 3.0 * (x > 0.5)),
    ],
    ids=["relu", "abs", "clamp", "unequal slopes"],
)
@pytest.mark.slow
def test_kinks_bias_a_slope_by_what_second_differences_foretell(function, gradient):
    slope = pooled(function, gradient, probes=2500, step=2.0**-5)
    foretold = -1.5 * slope.bias / BIAS_OF_KINKS
    assert slope.value == pytest.approx(foretold, abs=4.0 * slope.error)
    assert abs(foretold) > 2.0 * slope.error
    assert not slope.is_off(6.0, 0.0)


def test_an_error_is_told_from_a_kink_because_it_does_not_grow():
    slope = pooled(torch.relu, lambda x: (x > 0).double(), factor=1.1, step=2.0**-10)
    assert slope.is_off(6.0, 1e-3)
    assert slope.value == pytest.approx(1.0 / 1.1 - 1.0, abs=4.0 * slope.error + slope.bias)


def test_curvature_without_second_differences_is_told_by_its_growth():
    wave = 16.0

    generator = torch.Generator().manual_seed(3)
    regression = Regression(independent=True)
    for _ in range(100):
        v, g = torch.randn(2, 50, generator=generator, dtype=torch.float64).sign()
        rows = []
        for h in (STEP, RATIO * STEP):
            change = float((g * 2.0 * torch.sin(wave * h * v)).sum())
            part = float((g * wave * 2.0 * h * v).sum())
            rows.append((change, [part]))
        assert add(regression, *map(list, zip(*rows, strict=True)))
    (slope,) = regression.slopes_at_two_steps()
    assert abs(slope.value) > 6.0 * slope.error + slope.bias + 1e-3
    assert not slope.is_off(6.0, 1e-3)


def test_a_variable_that_changes_nothing_has_no_slope():
    regression = Regression(independent=True)
    for change in (0.1, -0.2, 0.3):
        assert add(regression, [change, change], [[change, 0.0], [change, 0.0]])
    one, other = regression.slopes_at_two_steps()
    assert one.value == 0.0
    assert other is None
    assert regression.scatter() == 0.0


def test_probes_that_are_not_finite_are_not_noted():
    regression = Regression(independent=True)
    assert not add(regression, [math.nan, 1.0], [[1.0], [1.0]])
    assert not add(regression, [1.0, 1.0], [[1.0], [math.inf]])
    assert not add(regression, [1.0, 1.0], [[1.0], [1.0]], math.nan)
    assert regression.count == 0
    assert regression.scatter() == 0.0


def test_the_step_is_where_rounding_scatters_little():
    assert step_for(0.0, 2.0**-17, 2.0**-15, 2.0**-9) == 2.0**-15
    assert step_for(0.03, 2.0**-17, 2.0**-15, 2.0**-9) == pytest.approx(10.0 * 2.0**-17)
    assert step_for(1e3, 2.0**-17, 2.0**-15, 2.0**-9) == 2.0**-9
