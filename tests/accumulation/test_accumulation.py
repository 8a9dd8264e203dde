"""GCS311: whether gradients that a loop accumulates are those of the full batch."""

from __future__ import annotations

import copy
import inspect
import itertools
import random

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, mse_loss
from torch.nn.utils import clip_grad_norm_

import gradcheck_suite as gs
from gradcheck_suite.auditing.session import open_sessions
from gradcheck_suite.findings import Severity

CODE = "GCS311"


def data(number=16):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(number, 4, generator=generator)
    return x, x.sum(1, keepdim=True) + torch.randn(number, 1, generator=generator)


def make(*layers, optimizer=torch.optim.SGD):
    model = nn.Sequential(nn.Linear(4, 8), *layers, nn.Tanh(), nn.Linear(8, 1))
    return model, optimizer(model.parameters(), lr=0.05)


def right(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        (mse_loss(model(x), y) / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


def not_divided(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        mse_loss(model(x), y).backward()  # <- here
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def divided_twice(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        loss = mse_loss(model(x), y) / accumulation_steps
        (loss / accumulation_steps).backward()  # <- here
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def divided_by_another_number(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        (mse_loss(model(x), y) / (2 if accumulation_steps > 1 else 1)).backward()  # <- here
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def never_cleared(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        (mse_loss(model(x), y) / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()  # <- here


def cleared_each_time(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        optimizer.zero_grad()  # <- here
        (mse_loss(model(x), y) / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()


def clipped_each_time(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        (mse_loss(model(x), y) / accumulation_steps).backward()
        clip_grad_norm_(model.parameters(), 0.05)  # <- here
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def too_early(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        (mse_loss(model(x), y) / accumulation_steps).backward()
        if index % accumulation_steps == 0:
            optimizer.step()  # <- here
            optimizer.zero_grad()


def each_time(state, batches, accumulation_steps):
    model, optimizer = state
    for x, y in batches:
        (mse_loss(model(x), y) / accumulation_steps).backward()
        optimizer.step()  # <- here
        optimizer.zero_grad()


def masked(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        mask = (x[:, :1] > 0).float()
        loss = ((model(x) - y).pow(2) * mask).sum() / mask.sum()
        (loss / accumulation_steps).backward()  # <- here
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def masked_in_all():
    """Return a batch whose micro-batches have another number of elements each, none has none."""
    x, y = data()
    x[:, 0] = x[:, 0].abs()
    for part in range(4):
        x[4 * part : 4 * part + part, 0] *= -1
    return x, y


def steps_in_a_scheduler_each_time(state, batches, accumulation_steps):
    model, optimizer = state
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scheduler._step_count = 2  # spares the warning of torch
    for index, (x, y) in enumerate(batches):
        if index % accumulation_steps:
            scheduler.step()
        (mse_loss(model(x), y) / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()  # <- here
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (not_divided, "4 times the gradient of the full batch: the loss is not divided"),
        (divided_twice, "1/4 of the gradient of the full batch: the loss is divided"),
        (divided_by_another_number, "2 times the gradient of the full batch"),
        (never_cleared, "on top of what the window before had left: never cleared"),
        (cleared_each_time, "of micro-batch 4 of 4 alone: that of the others was cleared"),
        (clipped_each_time, "clipped between the backwards of its window"),
        (too_early, "of 1 micro-batch where a window has 4: it steps too early"),
        (each_time, "ran 8 times over 2 windows of 4 micro-batches; expected 2"),
        (steps_in_a_scheduler_each_time, "a learning rate of 0.00625, where a full batch has 0.05"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_cause_is_told_at_its_line(loop, said, line_of):
    (finding,) = gs.check_accumulation(make, loop, data()).findings
    assert (finding.code, finding.severity) == (CODE, Severity.ERROR)
    assert said in finding.message
    assert finding.location.line == line_of(loop)
    assert finding.location.path == __file__
    assert finding.hint


def test_means_over_unequal_numbers_are_told_with_their_weights(line_of):
    (finding,) = gs.check_accumulation(make, masked, masked_in_all()).findings
    assert "each micro-batch adds the same" in finding.message
    assert "they count 0.4, 0.3, 0.2, 0.1" in finding.message
    assert finding.location.line == line_of(masked)
    assert finding.evidence["weights"] == pytest.approx([0.25] * 4)


def test_a_mean_over_nothing_is_told(line_of):
    x, y = masked_in_all()
    x[:4, 0] = -1.0
    (finding,) = gs.check_accumulation(make, masked, (x, y)).findings
    assert "NaN or infinity in it, where that of the full batch is finite" in finding.message
    assert finding.location.line == line_of(masked)


def test_two_causes_are_two_findings():
    def loop(state, batches, accumulation_steps):
        model, optimizer = state
        for index, (x, y) in enumerate(batches):
            mse_loss(model(x), y).backward()
            if (index + 1) % accumulation_steps == 0:
                optimizer.step()

    findings = gs.check_accumulation(make, loop, data()).findings
    assert [finding.evidence["cause"] for finding in findings] == ["ratio", "carried"]


def with_a_scaler(state, batches, accumulation_steps):
    model, optimizer = state
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for index, (x, y) in enumerate(batches):
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse_loss(model(x).float(), y) / accumulation_steps
        scaler.scale(loss).backward()
        if (index + 1) % accumulation_steps == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def a_sum(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        mse_loss(model(x), y, reduction="sum").backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def masked_and_divided_by_all(state, batches, accumulation_steps):
    model, optimizer = state
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        number = sum((x[:, :1] > 0).sum() for x, _ in window)
        for x, y in window:
            (((model(x) - y).pow(2) * (x[:, :1] > 0)).sum() / number).backward()
        optimizer.step()
        optimizer.zero_grad()


def cleared_by_none_at_the_start(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        if index % accumulation_steps == 0:
            for parameter in model.parameters():
                parameter.grad = None
        (mse_loss(model(x), y) / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()


@pytest.mark.parametrize(
    ("state", "loop", "batch"),
    [
        (make, right, data()),
        (lambda: make(optimizer=torch.optim.AdamW), right, data()),
        (lambda: make(optimizer=torch.optim.Adam), cleared_by_none_at_the_start, data()),
        (make, with_a_scaler, data()),
        (make, a_sum, data()),
        (make, masked_and_divided_by_all, masked_in_all()),
        (lambda: make(nn.LayerNorm(8), nn.Dropout(0.5)), right, data()),
        (lambda: make(nn.BatchNorm1d(8)), right, data()),
        (lambda: tuple(make()), right, tuple(map(torch.Tensor.double, data()))),
    ],
    ids=["sgd", "adamw", "by hand", "scaler", "sum", "masked", "dropout", "batch norm", "double"],
)
def test_correct_loops_pass(state, loop, batch):
    if batch[0].dtype is torch.float64:
        made = state

        def state():
            model, optimizer = made()
            return model.double(), optimizer

    report = gs.check_accumulation(state, loop, batch)
    assert not report.findings
    assert report.summary["runs"] == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("loop", "expected"), [(right, 0), (not_divided, 1)])
def test_tolerances_follow_the_type(dtype, loop, expected):
    def made():
        model, optimizer = make()
        return model.to(dtype), optimizer

    batch = tuple(each.to(dtype) for each in data())
    assert len(gs.check_accumulation(made, loop, batch).findings) == expected


def test_a_mistake_shows_with_dropout_and_batch_norm(line_of):
    def made():
        return make(nn.BatchNorm1d(8), nn.Dropout(0.5))

    report = gs.check_accumulation(made, not_divided, data())
    (finding,) = report.findings
    assert finding.location.line == line_of(not_divided)
    assert report.not_covered == (
        "batch norm `1` in training mode, which used its running statistics",
        "dropout, which was off",
    )


def with_dropout_as_a_function(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        (mse_loss(dropout(model(x), 0.5), y) / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


NOISE = (random.Random(each).random() for each in itertools.count())
"""Which no seed brings back."""


def with_noise_of_its_own(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        (mse_loss(model(x) * next(NOISE), y) / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def contrastive(state, batches, accumulation_steps):
    model, optimizer = state
    for index, (x, _) in enumerate(batches):
        features = model(x)
        loss = -torch.log_softmax(features @ features.T, 1).diagonal().mean()
        (loss / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def to_infinity(state, batches, accumulation_steps):
    model, optimizer = state
    for x, _ in batches:
        (model(x).mean() * float("inf")).backward()
    optimizer.step()
    if accumulation_steps > 1:
        optimizer.step()


def with_a_closure(state, batches, accumulation_steps):
    model, _ = state
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    for start in range(0, len(batches), accumulation_steps):

        def closure(start=start):
            optimizer.zero_grad()
            window = batches[start : start + accumulation_steps]
            loss = sum(mse_loss(model(x), y) for x, y in window) / len(window)
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize(
    ("loop", "layer", "why"),
    [
        (with_dropout_as_a_function, nn.Identity(), "other random numbers"),
        (with_noise_of_its_own, nn.Identity(), "each time"),
        (contrastive, nn.Identity(), "the samples of a batch depend on one another"),
        (right, nn.BatchNorm1d(8, track_running_stats=False), "depend on one another"),
        (to_infinity, nn.Identity(), "that of the full batch has NaN or infinity in it"),
        (with_a_closure, nn.Identity(), "its backward runs inside of step()"),
    ],
)
def test_what_can_not_be_compared_is_a_note_that_says_why(loop, layer, why):
    report = gs.check_accumulation(lambda: make(layer), loop, data())
    assert report.findings
    assert {finding.severity for finding in report.findings} == {Severity.NOTE}
    assert all("can't be compared" in f.message and why in f.message for f in report.findings)
    assert any(why in line for line in report.not_covered)
    assert report.ok


def test_a_wrong_scale_shows_although_samples_depend_on_one_another():
    def loop(state, batches, accumulation_steps):
        contrastive(state, batches, 1 if accumulation_steps == 1 else accumulation_steps)

    def undivided(state, batches, accumulation_steps):
        model, optimizer = state
        for index, (x, _) in enumerate(batches):
            features = model(x)
            (-torch.log_softmax(features @ features.T, 1).diagonal().mean()).backward()
            if (index + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert gs.check_accumulation(make, loop, data()).ok
    assert not gs.check_accumulation(make, undivided, data()).ok


def fixed_window(state, batches, _accumulation_steps):
    model, optimizer = state
    for index, (x, y) in enumerate(batches):
        mse_loss(model(x), y).backward()  # <- here
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_a_loop_with_a_fixed_window_is_compared_with_a_loss(line_of):
    with pytest.raises(gs.UsageError, match=r"stepped no optimizer.*or give loss="):
        gs.check_accumulation(make, fixed_window, data())

    def loss(state, batch):
        return mse_loss(state[0](batch[0]), batch[1])

    (finding,) = gs.check_accumulation(make, fixed_window, data(), loss=loss).findings
    assert finding.location.line == line_of(fixed_window)
    assert "4 times" in finding.message
    report = gs.check_accumulation(make, fixed_window, data(), loss=lambda *a: 4 * loss(*a))
    assert not report.findings


class Trainer:
    """Counts its calls itself, as trainers do."""

    def __init__(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.parts = {"model": model}
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.calls = 0

    def train(self, batches, accumulation_steps):
        for x, y in batches:
            (mse_loss(self.parts["model"](x), y) / accumulation_steps).backward()
            self.calls += 1
            if self.calls % accumulation_steps == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()


def everything_of(trainer):
    model = trainer.parts["model"]
    return copy.deepcopy(
        (
            list(model.state_dict().values()),
            [parameter.grad for parameter in model.parameters()],
            [list(state.values()) for state in trainer.optimizer.state.values()],
            [trainer.scheduler.last_epoch, trainer.calls, model.training],
            [torch.get_rng_state(), list(random.getstate()[1])],
        )
    )


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize("is_made", [True, False])
def test_objects_that_exist_already_are_left_as_they_are(is_made):
    trainer = Trainer()
    trainer.train([data()] * 4, 1)
    trainer.parts["model"](data()[0]).sum().backward()
    before = everything_of(trainer)
    state = (lambda: trainer) if is_made else trainer
    report = gs.check_accumulation(state, Trainer.train, data())
    assert not report.findings
    assert same(before, everything_of(trainer))
    assert not trainer.parts["model"][1]._forward_hooks
    assert not open_sessions()


def test_an_exception_of_the_loop_arrives_and_leaves_nothing_behind():
    trainer = Trainer()
    before = everything_of(trainer)

    def fails(state, batches, _steps):
        state.parts["model"](batches[0][0])
        raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        gs.check_accumulation(trainer, fails, data())
    assert same(before, everything_of(trainer))
    assert not open_sessions()


def test_buffers_that_each_forward_changes_are_why_gradients_differ():
    def made():
        model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 8)), nn.Linear(8, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    report = gs.check_accumulation(made, right, data())
    assert report.ok
    assert "each forward changes `0.weight_u`" in report.findings[0].message


def two_players():
    g, d = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (g, d)]
    return {"models": (g, d), "optimizers": optimizers}


def in_turns(state, batches, accumulation_steps, divided=True):
    (g, d), (of_g, of_d) = state["models"], state["optimizers"]
    number = accumulation_steps if divided else 1
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        of_d.zero_grad()
        for x, y in window:
            (mse_loss(d(g(x).detach()), y) / accumulation_steps).backward()
        of_d.step()
        of_g.zero_grad()
        for x, _ in window:
            (d(g(x)).mean() / number).backward()
        of_g.step()


def one_player_after_the_other(state, batches, accumulation_steps):
    (g, d), (of_g, of_d) = state["models"], state["optimizers"]
    for index, (x, y) in enumerate(batches):
        (mse_loss(d(g(x).detach()), y) / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            of_d.step()
            of_d.zero_grad()
    for index, (x, _) in enumerate(batches):
        (d(g(x)).mean() / accumulation_steps).backward()
        if (index + 1) % accumulation_steps == 0:
            of_g.step()
            of_g.zero_grad()
            of_d.zero_grad()


def test_two_optimizers_are_each_compared():
    assert not gs.check_accumulation(two_players, in_turns, data()).findings
    report = gs.check_accumulation(two_players, lambda *a: in_turns(*a, divided=False), data())
    (finding,) = report.findings
    assert "4 times" in finding.message
    report = gs.check_accumulation(two_players, one_player_after_the_other, data())
    assert not report.findings
    assert report.summary["windows"] == 1


def test_a_layer_that_is_already_in_evaluation_mode_is_nothing_to_speak_of():
    def made():
        model, optimizer = make(nn.BatchNorm1d(8), nn.Identity())
        return model.eval(), optimizer

    assert gs.check_accumulation(made, right, data()).not_covered == ()


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((lambda: 1, right, data()), {}, r"no trainable parameter in what make\(\) returned"),
        ((3, right, data()), {}, "no trainable parameter in what was given"),
        ((make, 3, data()), {}, "train must be a function, got 3"),
        ((make, right, data()), {"split": 3}, "split must be a function, got 3"),
        ((make, right, data()), {"micro_batches": 1}, "at least 2, got 1"),
        ((make, right, data()), {"micro_batches": True}, "at least 2, got True"),
        ((make, right, data(6)), {}, "a batch of 6 can't be cut into 4 .*; give a batch of 4"),
        ((make, right, data(3)), {}, "give a batch of 4"),
        ((make, right, "text"), {}, "no tensor with a first dimension to cut; give split="),
        (
            (make, right, data()),
            {"split": lambda *_: [0]},
            "returned 1 micro-batches; expected 4",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, options, said):
    with pytest.raises(gs.UsageError, match=said):
        gs.check_accumulation(*arguments, **options)


def usual(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()


def clears(model, optimizer, batches):
    optimizer.zero_grad()


def prepares(model, batches, steps):
    model.train()


def calls_the_state(model, batches, steps):
    return model(batches[0][0])


def takes_two(model, optimizer):
    pass


def needs_a_width(width):
    return make()


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (
            usual,
            r"and usual\(model, optimizer, batches\) took the number of steps to accumulate for",
        ),
        (
            usual,
            r"TypeError: .*'int'.* as in lambda state, batches, steps: train\(\*state, batches",
        ),
        (clears, "took the list of batches for something else: AttributeError: 'list' object has"),
        (
            prepares,
            r"took what make\(\) returned for something else: AttributeError: 'tuple' object",
        ),
        (calls_the_state, r"took what make\(\) returned for .*: 'tuple' object is not callable"),
        (takes_two, r"which takes_two\(model, optimizer\) can't be: too many positional arguments"),
    ],
)
def test_a_loop_of_another_shape_is_told_the_expected_one(train, said):
    shape = r"the loop is called as train\(state, batches, accumulation_steps\), .*"
    with pytest.raises(gs.UsageError, match=shape + said):
        gs.check_accumulation(make, train, data())


def test_a_maker_that_needs_arguments_is_told_so():
    with pytest.raises(
        gs.UsageError, match=r"made by make\(\), which needs_a_width\(width\) can't"
    ):
        gs.check_accumulation(needs_a_width, right, data())


def test_errors_of_the_loop_that_are_not_about_its_arguments_arrive_as_they_are():
    def misspells(state, batches, steps):
        return state[0].no_such

    def calls_a_list(state, batches, steps):
        layers = []
        return layers(batches)

    with pytest.raises(AttributeError, match="no_such"):
        gs.check_accumulation(make, misspells, data())
    with pytest.raises(TypeError, match="'list' object is not callable") as raised:
        gs.check_accumulation(make, calls_a_list, data())
    assert not isinstance(raised.value, gs.UsageError)


def test_a_loop_that_trains_something_else_is_refused_before_it_does():
    model, optimizer = make()
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises(gs.UsageError, match=r"SGD\.step\(\) in the loop has none of the parame"):
        gs.check_accumulation(make, lambda _, *rest: right((model, optimizer), *rest), data())
    assert same(before, list(model.parameters()))


def test_a_model_that_changes_or_can_not_be_copied_is_refused():
    widths = iter((8, 9, 10))

    def grows():
        model = nn.Linear(4, next(widths))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(gs.UsageError, match="a model of another shape than before"):
        gs.check_accumulation(grows, right, data())
    state = (*make(), (each for each in ()))
    with pytest.raises(gs.UsageError, match=r"can't be copied .*; give a function"):
        gs.check_accumulation(state, right, data())


@pytest.fixture
def line_of():
    def find(function):
        lines, first = inspect.getsourcelines(function)
        (line,) = [first + i for i, text in enumerate(lines) if text.rstrip().endswith("# <- here")]
        return line

    return find
