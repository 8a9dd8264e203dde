"""Batch norm that `eval()` does not reach (GCS701), and batch norm that is meant to train."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def block():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())


class Body(nn.Module):
    """Two blocks, the first of them frozen."""

    def __init__(self):
        super().__init__()
        self.first, self.second = block(), block()
        self.first.requires_grad_(False)

    def forward(self, x):
        return self.second(self.first(x))


class LeavesOut(Body):
    def train(self, mode=True):  # <- here
        self.training = mode
        self.second.train(mode)
        return self


class DoesNothing(Body):
    def train(self, *_mode):  # <- here
        return self


class Freezes(Body):
    def train(self, mode=True):
        super().train(mode)
        self.first.eval()
        return self


class LeavesOutWhatEvaluates(LeavesOut):
    def __init__(self):
        super().__init__()
        self.first.eval()


class TrainsOnPurpose(Body):
    def train(self, mode=True):
        super().train(mode)
        self.first.train()
        return self


class TrainsByHand(LeavesOut):
    def train(self, mode=True):
        self.training = mode
        self.second.train(mode)
        for layer in self.first.modules():
            layer.training = True
        return self


class BatchStatistics(nn.BatchNorm1d):
    """Normalizes by the batch at all times."""

    def train(self, mode=True):  # noqa: ARG002 - that is what it is for
        return super().train(True)


def make(body):
    return nn.Sequential(body(), nn.Linear(4, 1))


def evaluate(model, **_options):
    model.eval()  # <- eval
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 4))


def fit(model, evaluate=evaluate):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(2):
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        evaluate(model)


def codes(session):
    return [finding.code for finding in session.report.at_least(Severity.WARNING)]


def test_a_train_that_leaves_layers_out(audited, line_of):
    (finding,) = audited(lambda: fit(make(LeavesOut))).report.at_least(Severity.WARNING)
    assert (finding.code, finding.severity) == ("GCS701", Severity.WARNING)
    assert finding.location.line == line_of(LeavesOut)
    assert finding.location.function == "LeavesOut.train"
    assert finding.message == (
        "this train() leaves out `model[0].first[1]`: after `model.eval()` it ran in training mode "
        "all the same, normalized by the batch and moved the running statistics; expected every "
        "layer in evaluation mode"
    )
    called, ran = finding.related
    assert called.location.line == line_of(evaluate, "eval")
    assert ran.message == "it ran in training mode here"


def test_a_train_that_does_nothing(audited, line_of):
    def loop():
        fit(make(DoesNothing))

    (finding,) = audited(loop).report.at_least(Severity.WARNING)
    assert finding.location.line == line_of(DoesNothing)
    assert finding.evidence["layers"] == ("model[0].first[1]", "model[0].second[1]")


@pytest.mark.parametrize(
    "body", [Body, Freezes, LeavesOutWhatEvaluates, TrainsOnPurpose, TrainsByHand]
)
def test_each_layer_is_in_the_mode_that_is_meant(audited, body):
    assert codes(audited(lambda: fit(make(body)))) == []


def test_a_layer_that_decides_for_itself(audited):
    def loop():
        model = nn.Sequential(nn.Linear(4, 4), BatchStatistics(4), nn.Linear(4, 1))
        fit(model)

    assert codes(audited(loop)) == []


def test_batch_norm_that_is_put_into_training_after_eval(audited):
    def adapt(model):
        model.eval()
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.train()
        with torch.no_grad():
            model(torch.randn(8, 4))

    assert codes(audited(lambda: fit(make(LeavesOut), adapt))) == []
    assert codes(audited(lambda: fit(make(Body), adapt))) == []


def test_statistics_that_are_estimated_anew_or_not_kept(audited):
    def loop():
        for options in ({"momentum": None}, {"track_running_stats": False}):
            model = make(LeavesOut)
            model[0].first[1] = nn.BatchNorm1d(4, **options).requires_grad_(False)
            fit(model)

    assert codes(audited(loop)) == []


def test_a_model_that_trains_again_before_it_runs(audited):
    def switch(model):
        model.eval()
        model.train()
        with torch.no_grad():
            model[0].first(torch.randn(8, 4))

    assert codes(audited(lambda: fit(make(LeavesOut), switch))) == []
