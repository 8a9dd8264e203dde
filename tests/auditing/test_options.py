"""The options of an audit: what they allow, and that the documentation tells their defaults."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import gradcheck_suite as gs
from gradcheck_suite.auditing import AuditOptions
from gradcheck_suite.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"


def test_the_page_gives_every_default():
    told = dict(
        re.findall(r"^\| `(\w+)=([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert told == {field.name: repr(field.default) for field in fields(AuditOptions)}


@pytest.mark.parametrize("value", [-1, float("nan"), True, "5"])
def test_overhead_is_a_number_of_per_cent(value):
    with pytest.raises(UsageError, match="overhead must be a number of per cent, 0 or more, got"):
        gs.audit(overhead=value)
    with pytest.raises(UsageError, match="wait_for_ranks must be a number of seconds, 0 or more"):
        gs.audit(wait_for_ranks=value)


def test_switches_are_on_or_off():
    with pytest.raises(UsageError, match="compare_optimizer_state must be a bool, got 1"):
        gs.audit(compare_optimizer_state=1)


def test_by_default_checksums_wait_for_the_budget():
    options = AuditOptions(overhead=5)
    assert [step for step in range(6) if options.checksums_on(step, last=0, share=1)] == [0, 1, 2]
    assert not options.checksums_on(21, last=2, share=0.0)
    assert options.checksums_on(22, last=2, share=0.005)
    assert not options.checksums_on(22, last=2, share=0.0051)


def test_a_fixed_schedule_heeds_no_budget():
    options = AuditOptions(checksum_first_steps=0, checksum_every=3, overhead=0)
    due = [step for step in range(8) if options.checksums_on(step, last=0, share=1.0)]
    assert due == [0, 3, 6]
    never = AuditOptions(checksum_first_steps=0, checksum_every=0)
    assert not any(never.checksums_on(step, last=0, share=0.0) for step in range(50))
