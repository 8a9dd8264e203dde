from __future__ import annotations

import pytest
import torch
from torch import nn


def _classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.fixture
def labelled():
    return [(torch.randn(4, 8), torch.tensor([0, 1, 2, 1]))] * 2


def test_gcs701_validation_changes_batch_norm_although_nothing_is_recorded(
    example, instead, labelled
):
    for names, changed in ((example("GCS701"), True), (instead("GCS701"), False)):
        model = _classifier()
        before = model[1].running_mean.clone()
        names.validate(model, labelled)
        assert (not torch.equal(model[1].running_mean, before)) is changed
        assert model.training


def test_gcs701_dropout_changes_the_figures_from_run_to_run(example, instead):
    x = torch.randn(512, 8)
    for names, stable in ((example("GCS701"), False), (instead("GCS701"), True)):
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        y = model(x).argmax(dim=1)
        figures = {names.validate(model, [(x, y)]) for _ in range(5)}
        assert (len(figures) == 1) is stable


def test_gcs702_later_epochs_run_in_evaluation_mode(example, instead, labelled, capsys):
    for names, modes in ((example("GCS702"), [True, False]), (instead("GCS702"), [True, True])):
        model, seen = _classifier(), []
        model.register_forward_hook(
            lambda module, *_, seen=seen: (
                seen.append(module.training) if torch.is_grad_enabled() else None
            )
        )
        names.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), labelled, labelled)
        assert seen[:: len(labelled)] == modes
    assert capsys.readouterr().out


def test_gcs703_drops_values_after_eval(example, instead):
    x = torch.ones(64, 16)
    for names, is_fixed in ((example("GCS703"), False), (instead("GCS703"), True)):
        model = names.Network(16)
        same = torch.equal(names.evaluate(model, x), names.evaluate(model, x))
        assert same is is_fixed


def test_gcs704_statistics_stay_as_they_were_made(example, instead):
    for names, is_fixed in ((example("GCS704"), False), (instead("GCS704"), True)):
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        average = names.Average(model)
        model(torch.randn(8, 4) + 5.0)
        average.update(model)
        assert torch.equal(average.model[1].running_mean, torch.zeros(3)) is not is_fixed


def test_gcs901_returns_a_plain_tensor(example, instead):
    for names in (example("GCS901"), instead("GCS901")):
        weights = names.weights(3)
        assert type(weights) is torch.Tensor
        assert weights.is_leaf
        assert weights.requires_grad
    assert isinstance(torch.ones(1), torch.autograd.Variable)


def test_gcs902_has_no_effect_but_a_warning(example, instead):
    model, x = nn.Linear(8, 3), torch.randn(2, 8)
    with pytest.warns(UserWarning, match="volatile was removed and now has no effect"):
        assert example("GCS902").predict(model, x).requires_grad
    with pytest.warns(UserWarning, match="volatile was removed"):
        x.volatile = True
    assert model(x).requires_grad
    assert not instead("GCS902").predict(model, x).requires_grad


def test_gcs903_raises_after_the_step_is_done(example, instead, batches):
    x, y = batches[0]
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(IndexError, match=r"invalid index of a 0-dim tensor\. Use `tensor\.item"):
        example("GCS903").train_step(model, optimizer, x, y)
    assert isinstance(instead("GCS903").train_step(model, optimizer, x, y), float)


def test_gcs705_noise_repeats(example, instead, monkeypatch):
    drawn = []

    def noise(like):
        drawn.append(torch.rand(like.shape))
        return drawn[-1]

    monkeypatch.setattr(torch, "randn_like", noise)
    batches = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(3)]
    example("GCS705").train(batches)
    assert torch.equal(drawn[0], drawn[1])
    drawn.clear()
    instead("GCS705").train(batches)
    assert not torch.equal(drawn[0], drawn[1])


def test_gcs706_dropout_is_off_after_an_evaluation(example, instead, batches, capsys):
    x = torch.randn(256, 8)
    for names, is_fixed in ((example("GCS706"), False), (instead("GCS706"), True)):
        model = names.train(batches).train()
        assert torch.equal(model(x), model(x)) is not is_fixed
    assert capsys.readouterr().out
