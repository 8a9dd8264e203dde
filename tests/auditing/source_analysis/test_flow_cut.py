"""Ways to the loss that end in another function, in one value of several, or in what is drawn."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.auditing.source_analysis import flow_cut
from gradcheck_suite.findings import Location
from tests.auditing.loops import losses
from tests.auditing.loops.connected import data, make_net, sgd, update
from tests.auditing.loops.losses import cut_by_data, drawn, whole


def cut_in_an_imported_function():
    net = make_net()
    history = []
    for x, y in data():
        loss = cut_by_data(net, x, y)
        update(sgd(net), loss)
        history.append(loss.detach())
    return torch.stack(history)


def cut_in_a_function_of_an_imported_module():
    net = make_net()
    optimizer = sgd(net)
    history = []
    for x, y in data():
        optimizer.zero_grad()
        loss = losses.cut_by_data(net=net, x=x, y=y)
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    return torch.stack(history)


def cut_before_a_backward_of_another_loss():
    first, second = make_net(), make_net()
    optimizers = sgd(first), sgd(second)
    for x, y in data():
        logged = whole(first, x, y).detach()
        fooled = whole(first, x, y) + 0 * logged
        optimizers[0].zero_grad()
        fooled.backward()
        optimizers[0].step()
        loss = torch.tensor(whole(second, x, y).item())  # <- here
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()


@pytest.mark.parametrize(
    ("loop", "place"),
    [
        (cut_in_an_imported_function, cut_by_data),
        (cut_in_a_function_of_an_imported_module, cut_by_data),
        (cut_before_a_backward_of_another_loss, cut_before_a_backward_of_another_loss),
    ],
)
def test_what_cut_the_loss_is_sought_before_its_backward_alone(audited, only, line_of, loop, place):
    def run():
        with pytest.raises(RuntimeError, match="does not require grad"):
            loop()

    finding = only(audited(run), "GCS401")
    assert finding.location.line == line_of(place)
    assert finding.location.path == place.__code__.co_filename


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.policy = nn.Linear(4, 3)
        self.value = nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.body(x).tanh()
        return Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(-1)


def value_as_a_number():
    net = ActorCritic()
    optimizer = sgd(net)
    for x, y in data():
        policy, value = net(x)
        loss = -policy.log_prob(y).mean()
        loss = loss + 0.5 * (value - 1).pow(2).mean().item() - policy.entropy().mean()  # <- here
        update(optimizer, loss)


def value_with_its_graph():
    net = ActorCritic()
    optimizer = sgd(net)
    for x, y in data():
        policy, value = net(x)
        loss = -(policy.log_prob(y) * value.detach()).mean()
        update(optimizer, loss + 0.5 * (value - 1).pow(2).mean() - policy.entropy().mean())


def test_one_value_of_a_tuple_is_followed_on_its_own(audited, only, line_of):
    finding = only(audited(value_as_a_number), "GCS401")
    assert finding.location.line == line_of(value_as_a_number)
    assert "cut by `.item()`" in finding.message
    assert "`net.value.weight`, `net.value.bias`" in finding.message


def test_a_tuple_whose_values_are_all_used_is_fine(audited):
    assert audited(value_with_its_graph).findings == ()


class Policy(nn.Module):
    def __init__(self, *, reparametrised):
        super().__init__()
        self.mean = nn.Linear(4, 2)
        self.reparametrised = reparametrised

    def forward(self, x):
        about = Normal(self.mean(x), 1.0)
        drawn = about.rsample()
        if not self.reparametrised:
            drawn = about.sample()  # <- here
        return drawn.tanh(), about.log_prob(drawn).sum(-1)


def fit_policy(policy):
    critic = nn.Linear(6, 1)
    optimizers = sgd(critic), sgd(policy)
    for x, _ in data():
        with torch.no_grad():
            action, _ = policy(x)
        update(optimizers[0], F.mse_loss(critic(torch.cat([x, action], 1)), torch.ones(6, 1)))
        action, _ = policy(x)
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        loss = -critic(torch.cat([x, action], 1)).mean() + 0 * next(critic.parameters()).sum()
        if loss.requires_grad:
            update(optimizers[1], loss)
        else:
            update(optimizers[1], loss + torch.zeros((), requires_grad=True))
        for parameter in critic.parameters():
            parameter.requires_grad_(True)


def test_a_sample_without_a_graph_is_named_and_no_earlier_call_without_recording(
    audited, only, line_of
):
    finding = only(audited(lambda: fit_policy(Policy(reparametrised=False))), "GCS401")
    assert finding.location.line == line_of(Policy)
    assert "cut by `.sample()`" in finding.message
    assert finding.hint.startswith("draw with rsample()")


def test_a_reparametrised_sample_is_fine(audited):
    assert audited(lambda: fit_policy(Policy(reparametrised=True))).findings == ()


def fit_gates(*, hard):
    net = nn.Linear(4, 3)
    optimizer = sgd(net)
    for x, _ in data():
        update(optimizer, drawn(net, x, hard=hard))


def test_a_draw_from_chances_has_no_slope(audited, only, line_of):
    finding = only(audited(lambda: fit_gates(hard=True)), "GCS401")
    assert "goes through bernoulli, whose slope is zero" in finding.message
    assert finding.location.line == line_of(drawn)


def fit_gates_beside_a_bias():
    net, bias = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([*net.parameters(), bias], lr=0.01)
    for x, _ in data():
        gates = torch.bernoulli(net(x).sigmoid())  # <- here
        update(optimizer, (gates + bias - 1).pow(2).mean())


def test_a_draw_beside_a_way_with_a_slope_is_named_if_it_is_the_only_one(audited, only, line_of):
    finding = only(audited(fit_gates_beside_a_bias), "GCS401")
    assert "from 2 parameters" in finding.message
    assert finding.location.line == line_of(fit_gates_beside_a_bias)


def test_chances_themselves_have_a_slope(audited):
    assert audited(lambda: fit_gates(hard=False)).findings == ()


class LabelSmoothing(nn.Module):
    def forward(self, scores, classes):
        chances = scores.data.log_softmax(-1)  # <- here
        return -chances.gather(1, classes[:, None]).mean()


class Fitter:
    def __init__(self):
        self.net, self.criterion = make_net(), LabelSmoothing()

    def compute(self, x, y):
        return self.criterion(self.net(x), y)

    def fit(self):
        for x, y in data():
            loss = self.compute(x, y)
            update(sgd(self.net), loss)


def fit_with_a_local_criterion():
    net, criterion = make_net(), LabelSmoothing()
    for x, y in data():
        update(sgd(net), criterion(net(x), y))


def fit_by_a_trainer():
    Fitter().fit()


@pytest.mark.parametrize("loop", [fit_with_a_local_criterion, fit_by_a_trainer])
def test_the_forward_of_a_loss_module_is_looked_into(audited, only, line_of, loop):
    def run():
        with pytest.raises(RuntimeError, match="does not require grad"):
            loop()

    finding = only(audited(run), "GCS401")
    assert finding.location.line == line_of(LabelSmoothing)
    assert "cut off by `.data`" in finding.message


def losses_as_a_new_tensor():
    net = make_net()
    optimizer = sgd(net)
    for x, y in data():
        losses = [whole(net, x[:3], y[:3]).item(), whole(net, x[3:], y[3:]).item()]
        total = torch.tensor(losses, requires_grad=True).sum()  # <- here
        update(optimizer, total)


def losses_in_a_stack():
    net = make_net()
    optimizer = sgd(net)
    for x, y in data():
        losses = [whole(net, x[:3], y[:3]), whole(net, x[3:], y[3:])]
        shown = torch.tensor([loss.item() for loss in losses], requires_grad=True)
        update(optimizer, torch.stack(losses).sum() + 0 * shown.sum())


def test_a_leaf_made_of_losses_is_named_where_it_is_made(audited, only, line_of):
    finding = only(audited(losses_as_a_new_tensor), "GCS405")
    assert finding.location.line == line_of(losses_as_a_new_tensor)
    assert "makes a leaf of its own out of numbers" in finding.message
    assert finding.severity.value == "error"


def test_losses_in_a_stack_beside_such_a_leaf_are_fine(audited):
    assert audited(losses_in_a_stack).findings == ()


def encoder_logged_only_under_no_grad():
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(encoder, head)
    center = torch.zeros(4)
    for x, y in data():
        with torch.no_grad():
            center = 0.9 * center + 0.1 * encoder(x).mean(0)
        update(optimizer, F.cross_entropy(head(encoder(x) - center), y))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


def encoder_under_no_grad_and_called_for_nothing():
    encoder, head = Encoder(), nn.Linear(4, 3)
    optimizer = sgd(encoder, head)
    for x, y in data():
        with torch.no_grad():  # <- here
            code = encoder(x)
        encoder(x)
        update(optimizer, F.cross_entropy(head(code), y))


def test_calls_without_recording_count_where_the_others_are_for_nothing(audited, only, line_of):
    finding = only(audited(encoder_under_no_grad_and_called_for_nothing), "GCS402")
    assert finding.location.line == line_of(encoder_under_no_grad_and_called_for_nothing)


def test_what_is_logged_without_recording_is_fine(audited):
    assert audited(encoder_logged_only_under_no_grad).findings == ()


FUNCTIONS_THAT_CALL_EACH_OTHER = "\n".join(
    f"def f{i}(x):\n    "
    + "\n    ".join(f"x = f{j}(x) + f{j}(f{j}(x))" for j in range(12))
    + "\n    return x"
    for i in range(12)
)


def test_following_a_value_ends_however_many_calls_there_are(tmp_path, monkeypatch):
    looked_at = []
    value = flow_cut._Walk.value
    monkeypatch.setattr(
        flow_cut._Walk,
        "value",
        lambda walk, node: looked_at.append(1) or value(walk, node),
    )
    file = tmp_path / "many.py"
    file.write_text(FUNCTIONS_THAT_CALL_EACH_OTHER)
    place = Location(str(file), 2, function="f0")
    assert flow_cut.follow(place, from_calls=True) == "unknown"
    assert len(looked_at) <= flow_cut._MOST_EXPRESSIONS + 1


class Folder:
    def load(self, x):
        return torch.load(x).detach()


def loads():
    return torch.load("a")


def test_a_function_of_torch_is_not_taken_for_one_of_the_file_with_its_name():
    line = inspect.getsourcelines(loads)[1] + 1
    assert flow_cut.follow(Location(__file__, line, function="loads")) == "arrives"
