"""The extrapolated difference: its value, and that its error bound holds."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradcheck_suite.verification.numerics.central_differences import Level, estimate_limit

EPS = 2.0**-52
STEPS = [2.0**-exponent for exponent in range(4, 26, 2)]


def ladder(function, x, *, steps=STEPS, expected=0.0, eps=EPS, magnitude=0.0):
    """Take central differences of a float function, less an expected slope.

    ``magnitude`` is the largest number on the way to a value, where that is larger than the value.
    """
    levels = []
    bend = None
    centre = function(x)
    for step in steps:
        high, low = function(x + step), function(x - step)
        rounding = eps * max(abs(high), abs(low), magnitude) / step
        previous, bend = bend, (high + low - 2 * centre) / step
        ratio = steps[0] / steps[1]
        kink = math.inf if previous is None else abs(ratio * bend - previous) / (ratio - 1)
        levels.append(
            Level(
                step=step,
                slope=(high - low) / ((x + step) - (x - step)) - expected,
                rounding=rounding,
                kink=max(0.0, kink - 4 * rounding),
                unchanged=high == low == centre,
            )
        )
    return levels


SMOOTH = {
    "sin": (math.sin, math.cos),
    "exp": (math.exp, math.exp),
    "tanh": (math.tanh, lambda x: 1 - math.tanh(x) ** 2),
    "cubic": (lambda x: x**3 - 2 * x, lambda x: 3 * x**2 - 2),
    "rational": (lambda x: 1 / (1 + x * x), lambda x: -2 * x / (1 + x * x) ** 2),
    "fast": (lambda x: math.sin(40 * x), lambda x: 40 * math.cos(40 * x)),
}


@pytest.mark.parametrize("name", SMOOTH)
@given(x=st.floats(-3, 3))
def test_the_error_bound_holds_and_is_small_for_smooth_functions(name, x):
    function, derivative = SMOOTH[name]
    estimate = estimate_limit(ladder(function, x))
    assert abs(estimate.value - derivative(x)) <= 4 * estimate.error
    assert estimate.error < 1e-5 * max(1.0, abs(derivative(x)))


@given(x=st.floats(-3, 3), slope=st.floats(-100, 100), offset=st.floats(-100, 100))
@example(x=-1.0, slope=64.99063465107372, offset=64.0)  # what cancels was rounded before
def test_lines_are_exact_up_to_rounding(x, slope, offset):
    magnitude = abs(slope) * (abs(x) + STEPS[0])
    estimate = estimate_limit(ladder(lambda t: slope * t + offset, x, magnitude=magnitude))
    assert abs(estimate.value - slope) <= 4 * estimate.error + 1e-300
    assert estimate.error <= 1e-9 * (1 + abs(slope) + abs(offset))


@given(distance=st.floats(1e-6, 1.0))
def test_a_kink_near_by_is_stepped_inside(distance):
    """Coarse steps see abs as nearly flat; only steps inside the distance see its slope."""
    estimate = estimate_limit(ladder(abs, distance))
    assert abs(estimate.value - 1.0) <= 4 * estimate.error


def test_a_kink_at_the_point_leaves_no_small_error():
    estimate = estimate_limit(ladder(lambda t: max(t, 0.0), 0.0))
    assert estimate.main_error == "kink"
    assert estimate.error > 0.4


def test_noise_far_above_rounding_is_measured():
    def noisy(t):
        return math.sin(t) + 1e-6 * math.sin(1e12 * t)

    estimate = estimate_limit(ladder(noisy, 1.0))
    assert abs(estimate.value - math.cos(1.0)) <= 4 * estimate.error
    assert estimate.error > 1e-7


def test_stairs_below_the_steps_do_not_pretend_to_be_flat():
    """Values in float32 do not change under the smallest steps; the derivative is not zero."""

    def coarse(t):
        return round(math.sin(t) * 2**20) / 2**20

    steps = [2.0**-exponent for exponent in range(4, 40, 2)]
    estimate = estimate_limit(ladder(coarse, 1.0, steps=steps, expected=math.cos(1.0)))
    assert abs(estimate.value) <= 4 * estimate.error
    assert estimate.error < 0.1


def test_a_constant_is_exactly_flat():
    estimate = estimate_limit(ladder(lambda _: 3.0, 1.0, eps=0.0))
    assert (estimate.value, estimate.error) == (0.0, 0.0)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_levels_know_nothing(count):
    estimate = estimate_limit(ladder(math.sin, 1.0)[:count])
    assert estimate.error == math.inf
