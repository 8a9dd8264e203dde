"""``--diff-against``: a run that fails on what an earlier report did not have."""

from __future__ import annotations

import json

import pytest

from tests import warm_python

SCRIPT = """\
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def audit(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*options):
        words = ["-m", "gradcheck_suite", "audit", *options, "train.py"]
        return warm_python.run(words, cwd=tmp_path)

    return run


@pytest.mark.slow
def test_what_was_found_before_fails_no_more_though_its_lines_moved(audit, tmp_path):
    first = audit("--output-format", "json", "--output-file", "old.json")
    assert first.returncode == 1, first.stderr
    (tmp_path / "train.py").write_text("# a comment\n\n" + SCRIPT)
    assert audit().returncode == 1
    second = audit("--diff-against", "old.json", "--output-format", "json")
    assert second.returncode == 0, second.stdout
    document = json.loads(second.stdout)
    assert document["findings"] == []
    old = json.loads((tmp_path / "old.json").read_text())
    assert document["summary"]["known"] == len(old["findings"])


def test_an_earlier_report_that_is_none_is_a_usage_error(audit, tmp_path):
    (tmp_path / "old.json").write_text("{}")
    done = audit("--diff-against", "old.json")
    assert done.returncode == 2
    assert "old.json is no report of gradcheck-suite in JSON with fingerprints" in done.stderr
