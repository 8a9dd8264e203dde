"""The audits that a framework's hooks open and end, without any framework."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from gradcheck_suite.integrations.training_audit import TrainingAudit, counts_of
from tests import warm_python
from tests.integrations.places import accusations, comment_at, the


@pytest.fixture
def audit():
    audit = TrainingAudit({"max_steps": 100})
    yield audit
    audit.end()


def train(steps=4):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 3)).sum().backward()  # never cleared
        optimizer.step()  # applied again


def test_each_training_has_a_session_of_its_own(audit):
    audit.begin(None)
    train()
    first = audit.session
    audit.end()
    audit.begin(None)
    audit.end()
    assert accusations(first) == ["GCS301"]
    assert accusations(audit.session) == []
    assert audit.session is not first


def test_what_was_replaced_in_torch_is_put_back(audit):
    before = Optimizer.zero_grad
    audit.begin(None)
    assert Optimizer.zero_grad is not before
    audit.end()
    assert Optimizer.zero_grad is before
    audit.end()
    assert not audit.runs


def test_a_model_among_the_options_is_the_one_that_names():
    named = nn.Linear(3, 1)
    audit = TrainingAudit({"model": named})
    audit.begin(nn.Linear(2, 2))
    assert audit.session._names.model is named
    audit.end()


def test_a_training_whose_end_nobody_told_of_ends_with_the_next(audit):
    before = Optimizer.zero_grad
    audit.begin(None)
    audit.begin(None)
    audit.end()
    assert Optimizer.zero_grad is before


def test_loggers_are_told_the_counts(audit, caplog):
    told = []
    audit.begin(None)
    train()
    with caplog.at_level(logging.INFO, logger="gradcheck_suite"):
        audit.end(log=told.append)
    assert told == [
        {
            "gradcheck/errors": 1.0,
            "gradcheck/warnings": 0.0,
            "gradcheck/notes": 0.0,
            "gradcheck/GCS301": 1.0,
        }
    ]
    assert counts_of(audit.session.report) == told[0]
    assert "GCS301 [error]" in caplog.text
    assert comment_at(the("GCS301", audit.session).location) == "applied again"


def test_a_logger_that_fails_costs_a_line_and_no_training(audit, capsys):
    def log(counts):
        raise RuntimeError("no connection")

    audit.begin(None)
    audit.end(log=log)
    assert capsys.readouterr().err == (
        "gradcheck-suite: loggers are not told of an audit: RuntimeError: no connection\n"
    )


def test_what_ended_the_training_is_told_to_the_audit(audit):
    audit.begin(None)
    try:
        torch.ones(2, requires_grad=True).add_(1)
    except RuntimeError as error:
        audit.end(error)
    assert [each.code for each in audit.session.findings] == ["GCS101"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_has_the_options_and_no_running_audit(audit, copied):
    audit.begin(None)
    other = copied(audit)
    assert not other.runs
    assert other.session is not audit.session
    other.begin(None)
    train(steps=1)
    other.end()
    assert other.session.report.summary["steps"] == 1


UNENDED = """
import torch
from gradcheck_suite.integrations.training_audit import TrainingAudit

audit = TrainingAudit({})
audit.begin(None)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
raise ValueError("of the user's")
"""


def test_a_program_that_ends_without_a_word_still_has_its_report(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(UNENDED, encoding="utf-8")
    done = warm_python.run([program.name], cwd=tmp_path)
    assert done.returncode == 1
    assert "GCS301" in done.stderr
    assert done.stderr.index("of the user's") < done.stderr.index("error GCS301")
