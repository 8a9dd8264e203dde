"""Losses, or terms of them, that lost their graph: the line that cut it is told."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from tests.auditing.loops.connected import data, make_net, sgd, update


def item_of_the_loss():
    net = make_net()
    for x, y in data():
        loss = F.cross_entropy(net(x), y)
        loss = torch.tensor(loss.item())  # <- here
        update(sgd(net), loss)


def argmax_as_a_prediction():
    net = make_net()
    for x, y in data():
        guess = net(x).argmax(1).float()  # <- here
        loss = F.mse_loss(guess, y.float())
        update(sgd(net), loss)


def classes_in_place_of_scores():
    net = nn.Linear(4, 3)
    for x, y in data():
        _, guess = net(x).max(1)  # <- here
        update(sgd(net), (guess.float() - y).abs().mean())


def classes_by_index():
    net = nn.Linear(4, 3)
    for x, y in data():
        guess = torch.sort(net(x), dim=1)[1].float()  # <- here
        update(sgd(net), (guess[:, 0] - y).abs().mean())


def accuracy_as_a_loss():
    net = make_net()
    for x, _ in data():
        out = net(x)
        hits = out.softmax(1) > 0.5  # <- here
        update(sgd(net), 1 - hits.float().mean())


def forward_in_no_grad():
    net = make_net()
    for x, y in data():
        with torch.no_grad():  # <- here
            out = net(x)
        update(sgd(net), F.cross_entropy(out, y))


def forward_in_inference_mode():
    net = make_net()
    for x, y in data():
        with torch.inference_mode():  # <- here
            out = net(x)
        update(sgd(net), F.cross_entropy(out, y))


def loss_in_no_grad_with_a_penalty():
    net = make_net()
    for x, y in data():
        penalty = sum(p.abs().sum() for p in net.parameters())
        with torch.no_grad():  # <- here
            loss = F.cross_entropy(net(x), y) + 1e-4 * penalty
        update(sgd(net), loss)


def mixed_up_loss_in_no_grad():
    net = make_net()
    for x, y in data():
        keep = torch.distributions.Beta(0.4, 0.4).sample().item()
        out = net(keep * x + (1 - keep) * x.flip(0))
        with torch.no_grad():  # <- here
            loss = keep * F.cross_entropy(out, y) + (1 - keep) * F.cross_entropy(out, y.flip(0))
        update(sgd(net), loss)


@torch.no_grad()  # <- helper
def predict(net, x):
    return net(x)


def forward_in_a_decorated_helper():
    net = make_net()
    for x, y in data():
        update(sgd(net), F.cross_entropy(predict(net, x), y))


def grad_mode_left_off():
    net = make_net()
    torch.set_grad_enabled(False)  # <- here
    try:
        for x, y in data():
            loss = F.cross_entropy(net(x), y)
            loss.backward()
    finally:
        torch.set_grad_enabled(True)


def all_frozen():
    net = make_net().requires_grad_(False)
    optimizer = sgd(net)
    for x, y in data():
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()  # <- here
        optimizer.step()


RAISING = [
    (item_of_the_loss, "GCS401", "here"),
    (argmax_as_a_prediction, "GCS401", "here"),
    (classes_in_place_of_scores, "GCS401", "here"),
    (classes_by_index, "GCS401", "here"),
    (accuracy_as_a_loss, "GCS401", "here"),
    (forward_in_no_grad, "GCS402", "here"),
    (forward_in_inference_mode, "GCS402", "here"),
    (grad_mode_left_off, "GCS402", "here"),
    (loss_in_no_grad_with_a_penalty, "GCS402", "here"),
    (mixed_up_loss_in_no_grad, "GCS402", "here"),
    (forward_in_a_decorated_helper, "GCS402", None),
    (all_frozen, "GCS406", "here"),
]


@pytest.mark.parametrize("case", RAISING, ids=lambda case: case[0].__name__)
def test_a_loss_without_a_graph_is_told_with_the_line_that_lost_it(audited, only, line_of, case):
    loop, code, marker = case

    def run():
        with pytest.raises(RuntimeError, match=r"does not require grad|Inference tensors"):
            loop()

    finding = only(audited(run), code)
    assert "without a graph" in finding.message
    if marker is not None:
        assert finding.location.line == line_of(loop, marker)


def one_term_by_item():
    net, weight = make_net(), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([*net.parameters(), weight], lr=0.1)
    for x, y in data():
        loss = torch.tensor(F.cross_entropy(net(x), y).item())  # <- here
        update(optimizer, loss + weight.pow(2).sum())


def encoder_detached():
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(encoder, head)
    for x, y in data():
        code = encoder(x).detach()  # <- here
        update(optimizer, F.cross_entropy(head(code), y))


def encoder_through_data():
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(encoder, head)
    for x, y in data():
        code = encoder(x)
        out = head(code.data)  # <- here
        update(optimizer, F.cross_entropy(out, y))


def encoder_through_numpy():
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(encoder, head)
    for x, y in data():
        array = encoder(x).detach().numpy()  # <- here
        update(optimizer, F.cross_entropy(head(torch.from_numpy(array)), y))


def quantize(code):
    bins = code.argmax(1)  # <- helper
    return F.one_hot(bins, 4).float()


def encoder_cut_in_a_helper():
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(encoder, head)
    for x, y in data():
        update(optimizer, F.cross_entropy(head(quantize(encoder(x))), y))


class CutsInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.first(x).relu()
        hidden = torch.tensor(hidden.tolist())  # <- here
        return self.second(hidden)


def model_cuts_in_forward():
    net = CutsInForward()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


def rounded():
    net = nn.Linear(4, 3)
    optimizer = sgd(net)
    for x, _ in data():
        out = net(x).round()  # <- here
        update(optimizer, F.mse_loss(out, torch.ones(6, 3)))


class RoundedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        scale = self.weight.detach().abs().max() / 7
        rounded = torch.round(self.weight / scale) * scale  # <- here
        return F.linear(x, rounded)


def weight_rounded_in_forward():
    model = nn.Sequential(RoundedWeight(), nn.Linear(3, 3))
    optimizer = sgd(model)
    for x, y in data():
        update(optimizer, F.cross_entropy(model(x), y))


def one_of_two_on_a_line():
    net, extra = nn.Linear(4, 3), nn.Linear(4, 1)
    optimizer = sgd(net, extra)
    for x, y in data():
        out, penalty = net(x), extra(x).abs().mean()
        loss = F.cross_entropy(out, y) + 0.5 * penalty.item()  # <- here
        update(optimizer, loss)


def backbone_in_no_grad():
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(body, head)
    for x, y in data():
        with torch.no_grad():  # <- here
            hidden = body(x)
        update(optimizer, F.cross_entropy(head(hidden), y))


def forced_tensor():
    net = make_net()
    optimizer = sgd(net)
    for x, y in data():
        loss = F.cross_entropy(net(x), y)
        loss = torch.tensor(loss.item(), requires_grad=True)  # <- here
        update(optimizer, loss)


def forced_method():
    net = make_net()
    optimizer = sgd(net)
    for x, y in data():
        loss = F.mse_loss(net(x).argmax(1).float(), y.float())
        loss.requires_grad_()  # <- here
        update(optimizer, loss)


def forced_attribute():
    net = make_net()
    optimizer = sgd(net)
    for x, y in data():
        with torch.no_grad():
            loss = F.cross_entropy(net(x), y)
        loss.requires_grad = True  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


SILENT_BUGS = [
    (one_term_by_item, "GCS401", one_term_by_item),
    (encoder_detached, "GCS401", encoder_detached),
    (encoder_through_data, "GCS401", encoder_through_data),
    (encoder_through_numpy, "GCS401", encoder_through_numpy),
    (encoder_cut_in_a_helper, "GCS401", (quantize, "helper")),
    (model_cuts_in_forward, "GCS401", CutsInForward),
    (rounded, "GCS401", rounded),
    (weight_rounded_in_forward, "GCS401", RoundedWeight),
    (one_of_two_on_a_line, "GCS401", one_of_two_on_a_line),
    (backbone_in_no_grad, "GCS402", backbone_in_no_grad),
    (forced_tensor, "GCS405", forced_tensor),
    (forced_method, "GCS405", forced_method),
    (forced_attribute, "GCS405", forced_attribute),
]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("loop", "code", "place"), SILENT_BUGS, ids=[bug[0].__name__ for bug in SILENT_BUGS]
)
def test_what_never_trains_is_told_with_its_line(audited, line_of, loop, code, place):
    session = audited(loop)
    assert {finding.code for finding in session.findings} == {code}, session.findings
    assert len(session.findings) == 1
    if place is not None:
        place, marker = place if isinstance(place, tuple) else (place, "here")
        assert session.findings[0].location.line == line_of(place, marker)


class Autoencoder(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(2, 4)
        self.draw = draw

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        drawn = self.draw(mean, spread.exp())
        kl = (mean.square() + spread.exp().square() - 2 * spread).mean()
        return (self.decoder(drawn) - x).square().mean() + 0.1 * kl


def drawn_without_gradient(mean, std):
    return torch.normal(mean, std)  # <- drawn


def drawn_with_gradient(mean, std):
    return mean + std * torch.randn_like(std)


def drawn_from_constants(mean, std):
    return mean + torch.empty_like(std).normal_()


def trained(draw):
    torch.manual_seed(0)
    model = Autoencoder(draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run():
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).backward()
            optimizer.step()

    return run


def test_values_drawn_from_what_has_a_graph(audited, only, line_of):
    finding = only(audited(trained(drawn_without_gradient)), "GCS401")
    assert finding.severity.value == "warning"
    assert finding.location.line == line_of(drawn_without_gradient, "drawn")
    assert "normal() draws from a distribution whose parameters have a graph" in finding.message


@pytest.mark.parametrize("draw", [drawn_with_gradient, drawn_from_constants])
def test_draws_that_keep_the_gradient_or_need_none(audited, draw):
    assert not audited(trained(draw)).findings


def scaled_steps(loss_of, *, backward=True):
    net = make_net()
    optimizer, scaler = sgd(net), torch.amp.GradScaler("cpu", init_scale=8.0)
    for x, y in data():
        loss = loss_of(net(x), y)
        if backward:
            scaler.scale(loss).backward()
        else:
            scaler.scale(loss)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def guesses_of_scores(scores, y):
    guess = scores.argmax(1).float().unsqueeze(1).repeat(1, scores.shape[1])  # <- here
    return F.cross_entropy(guess.requires_grad_(), y)


def test_a_step_that_a_scaler_refuses_is_told_where_its_loss_was_cut_off(audited, only, line_of):
    def loop():
        with pytest.raises(AssertionError, match="No inf checks"):
            scaled_steps(guesses_of_scores)

    finding = only(audited(loop), "GCS401")
    assert finding.severity.value == "error"
    assert finding.location is not None
    assert finding.location.line == line_of(guesses_of_scores)
    assert "cut by `.argmax()`" in finding.message
    assert finding.related[-1].message == "scaler.step() is called here"


def test_a_step_that_a_scaler_refuses_for_want_of_a_backward_is_the_scalers(audited, only):
    def loop():
        with pytest.raises(AssertionError, match="No inf checks"):
            scaled_steps(F.cross_entropy, backward=False)

    finding = only(audited(loop), "GCS310")
    assert "expected scaler.scale(loss).backward() before it" in finding.message


def rivals_of_which_one_learns_nothing():
    maker, judge = nn.Linear(3, 4), nn.Linear(4, 1)
    own, other = sgd(maker), sgd(judge)
    for x, _ in data(12):
        fake = maker(x[:, :3]).detach()  # <- here
        other.zero_grad()
        (judge(fake).mean() - judge(x).mean()).backward()
        other.step()
        own.zero_grad()
        (-judge(fake).mean()).backward()
        own.step()


def rivals():
    maker, judge = nn.Linear(3, 4), nn.Linear(4, 1)
    own, other = sgd(maker), sgd(judge)
    for x, _ in data(12):
        fake = maker(x[:, :3])
        other.zero_grad()
        (judge(fake.detach()).mean() - judge(x).mean()).backward()
        other.step()
        own.zero_grad()
        (-judge(fake).mean()).backward()
        own.step()


def test_what_an_optimizer_trains_in_vain_is_an_error_and_its_consequence_a_note(audited, line_of):
    found = audited(rivals_of_which_one_learns_nothing).findings
    told = {each.code: each for each in found}
    assert told["GCS401"].severity.value == "error"
    assert told["GCS401"].location.line == line_of(rivals_of_which_one_learns_nothing)
    assert told["GCS302"].severity.value == "note"


def test_two_that_train_against_one_another_are_no_error(audited):
    assert not [each for each in audited(rivals).findings if each.severity.value == "error"]
