"""Loops in which something never trains, their corrected twins, and loops that only look so."""

from __future__ import annotations

import copy
import io
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.utils.checkpoint import checkpoint

STEPS = 6


def data(steps=STEPS):
    for _ in range(steps):
        yield torch.randn(6, 4), torch.randint(0, 3, (6,))


def sgd(*modules):
    return torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.01)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def make_net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


# Whole losses without a graph: backward raises, and the audit says where it was lost.


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


@torch.no_grad()  # <- helper
def predict(net, x):
    return net(x)


def forward_in_a_decorated_helper():
    net = make_net()
    for x, y in data():
        update(sgd(net), F.cross_entropy(predict(net, x), y))


def grad_mode_left_off():
    net = make_net()
    torch.set_grad_enabled(False)
    try:
        for x, y in data():
            loss = F.cross_entropy(net(x), y)
            loss.backward()  # <- here
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
    (accuracy_as_a_loss, "GCS401", "here"),
    (forward_in_no_grad, "GCS402", "here"),
    (forward_in_inference_mode, "GCS402", "here"),
    (grad_mode_left_off, "GCS402", "here"),
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


# Parts that never train: nothing raises.


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


def backbone_in_no_grad():
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(body, head)
    for x, y in data():
        with torch.no_grad():
            hidden = body(x)  # <- here
        update(optimizer, F.cross_entropy(head(hidden), y))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):  # <- here
        return self.head(self.first(self.first(x).relu()))


def layer_never_called():
    net = Unused()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        gate = self.gate(x).sigmoid()  # <- here
        del gate
        return self.head(x)


def output_not_used():
    net = Dropped()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x):  # <- here
        return self.head(x)


def parameter_not_used():
    net = Scale()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class ShortLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return x


def last_layer_left_out():
    net = ShortLoop()
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class InList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(2)]  # <- here
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


class InDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = {"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}  # <- here
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.body(x)
        return self.heads["a"](hidden) + self.heads["b"](hidden)


class Parameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.offsets = []  # <- here
        for _ in range(2):
            self.offsets.append(nn.Parameter(torch.zeros(3)))

    def forward(self, x):
        return self.head(x) + self.offsets[0] + self.offsets[1]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.grid = [[nn.Linear(4, 4), nn.ReLU()], [nn.Linear(4, 4), nn.ReLU()]]  # <- here
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for row in self.grid:
            for layer in row:
                x = layer(x)
        return self.head(x)


def fit(make):
    def loop():
        net = make()
        optimizer = sgd(net)
        for x, y in data():
            update(optimizer, F.cross_entropy(net(x), y))

    loop.__name__ = make.__name__
    loop.source = make
    return loop


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


def only_frozen_parameters():
    frozen, head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)
    first, second = sgd(frozen), sgd(head)
    for x, y in data():
        first.zero_grad()
        update(second, F.cross_entropy(head(frozen(x)), y))
        first.step()  # <- here


def some_frozen_parameters():
    net = make_net()
    net[0].requires_grad_(False)
    optimizer = sgd(net)
    for x, y in data():
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()  # <- here


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.reentrant = reentrant

    def forward(self, x):
        hidden = checkpoint(self.stem, x, use_reentrant=self.reentrant)  # <- here
        return self.head(hidden)


def first_block_in_a_reentrant_checkpoint():
    net = Checkpointed(reentrant=True)
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class NoWeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        _, weight = ctx.saved_tensors
        return grad @ weight.t(), None


def function_returns_none():
    body, weight = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 3))
    optimizer = torch.optim.SGD([*body.parameters(), weight], lr=0.1)
    for x, y in data():
        update(optimizer, F.cross_entropy(NoWeightGradient.apply(body(x), weight), y))


SILENT_BUGS = [
    (one_term_by_item, "GCS401", one_term_by_item),
    (encoder_detached, "GCS401", encoder_detached),
    (encoder_through_data, "GCS401", encoder_through_data),
    (encoder_through_numpy, "GCS401", encoder_through_numpy),
    (encoder_cut_in_a_helper, "GCS401", (quantize, "helper")),
    (model_cuts_in_forward, "GCS401", CutsInForward),
    (rounded, "GCS401", rounded),
    (backbone_in_no_grad, "GCS402", backbone_in_no_grad),
    (layer_never_called, "GCS403", Unused),
    (output_not_used, "GCS403", Dropped),
    (parameter_not_used, "GCS403", Scale),
    (last_layer_left_out, "GCS403", None),
    (fit(InList), "GCS404", InList),
    (fit(InDict), "GCS404", InDict),
    (fit(Parameters), "GCS404", Parameters),
    (fit(Nested), "GCS404", Nested),
    (forced_tensor, "GCS405", forced_tensor),
    (forced_method, "GCS405", forced_method),
    (forced_attribute, "GCS405", forced_attribute),
    (only_frozen_parameters, "GCS406", only_frozen_parameters),
    (some_frozen_parameters, "GCS406", some_frozen_parameters),
    (first_block_in_a_reentrant_checkpoint, "GCS408", Checkpointed),
    (function_returns_none, "GCS508", NoWeightGradient),
]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("loop", "code", "place"), SILENT_BUGS, ids=[bug[0].__name__ for bug in SILENT_BUGS]
)
def test_what_never_trains_is_told_with_its_line(audited, line_of, loop, code, place):
    session = audited(loop)
    assert {finding.code for finding in session.findings} == {code}, session.findings
    assert len(session.findings) == 1
    if place is NoWeightGradient:
        assert "NoWeightGradient returns None" in session.findings[0].message
    elif place is not None:
        place, marker = place if isinstance(place, tuple) else (place, "here")
        assert session.findings[0].location.line == line_of(place, marker)


# Loops in which all is well.


def straight_through():
    net = nn.Linear(4, 3)
    for x, y in data():
        out = net(x)
        out = out + (out.round() - out).detach()
        update(sgd(net), F.cross_entropy(out, y))


def logged_item():
    net, total = make_net(), 0.0
    optimizer = sgd(net)
    for x, y in data():
        out = net(x)
        loss = F.cross_entropy(out, y)
        total += loss.item()
        assert (out.argmax(1) == y).float().mean() <= 1
        update(optimizer, loss)


def frozen_backbone_under_no_grad():
    body, head = nn.Linear(4, 4), nn.Linear(4, 3)
    optimizer = sgd(head)
    for x, y in data():
        with torch.no_grad():
            hidden = body(x)
        update(optimizer, F.cross_entropy(head(hidden), y))


def teacher():
    student, big = make_net(), make_net()
    optimizer = sgd(student)
    for x, _ in data():
        with torch.no_grad():
            wanted = big(x)
        update(optimizer, F.mse_loss(student(x), wanted))


def target_network():
    online = make_net()
    target = copy.deepcopy(online)
    optimizer = sgd(online)
    for x, y in data():
        with torch.no_grad():
            best = target(x).max(1).values
        update(optimizer, F.mse_loss(online(x).gather(1, y[:, None])[:, 0], best))
        target.load_state_dict(online.state_dict())


def averaged_copy():
    net = make_net()
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))
        average.update_parameters(net)


def experts_take_turns():
    experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(8))
    optimizer = sgd(experts)
    for step, (x, y) in enumerate(data()):
        update(optimizer, F.cross_entropy(experts[step % 3](x), y))


def random_depth():
    draw = random.Random(0)
    layers, head = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 3)
    optimizer = sgd(layers, head)
    for x, y in data():
        for layer in layers:
            if draw.random() < 0.4:
                x = x + layer(x)  # noqa: PLW2901 - the hidden state
        update(optimizer, F.cross_entropy(head(x), y))


def alternating_optimizers():
    one, other = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizers = [sgd(one), sgd(other)]
    for step, (x, y) in enumerate(data(8)):
        loss = F.cross_entropy((one, other)[step % 2](x), y)
        update(optimizers[step % 2], loss)


def one_optimizer_two_phases():
    one, other = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = sgd(one, other)
    for step, (x, y) in enumerate(data(8)):
        update(optimizer, F.cross_entropy((one if step < 4 else other)(x), y))


def thawed_later():
    body, head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)
    optimizer = sgd(body, head)
    for step, (x, y) in enumerate(data(8)):
        if step == 4:
            body.requires_grad_(True)
        update(optimizer, F.cross_entropy(head(body(x)), y))


def bias_before_a_norm():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


class ListedToo(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
        self.order = [self.first, self.second]

    def forward(self, x):
        for layer in self.order:
            x = layer(x)
        return x


class HiddenLossNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.perceptual = [nn.Linear(3, 3).eval()]

    def forward(self, x):
        return self.perceptual[0](self.net(x))


class HiddenFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.helpers = [nn.Linear(3, 3).requires_grad_(False) for _ in range(2)]

    def forward(self, x):
        return self.helpers[1](self.helpers[0](self.net(x)))


class ListOfItsOwnOptimizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.heads = [nn.Linear(4, 3), nn.Linear(4, 3)]

    def forward(self, x):
        return self.heads[0](self.net(x)) + self.heads[1](self.net(x))


def list_handed_over_by_hand():
    net = ListOfItsOwnOptimizer()
    optimizer = sgd(net, *net.heads)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


def checkpoint_without_reentry():
    net = Checkpointed(reentrant=False)
    optimizer = sgd(net)
    for x, y in data():
        update(optimizer, F.cross_entropy(net(x), y))


def scalar_parameter():
    scale = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.SGD([scale], lr=0.1)
    for _ in data():
        update(optimizer, scale)


def actor_and_critic():
    actor, critic = make_net(), nn.Linear(4, 1)
    first, second = sgd(actor), sgd(critic)
    for x, _ in data():
        with torch.no_grad():
            act = torch.distributions.Categorical(logits=actor(x)).sample()
        value = critic(x)[:, 0]
        advantage = (torch.randn(6) - value).detach()
        update(second, value.pow(2).mean())
        logs = torch.distributions.Categorical(logits=actor(x)).log_prob(act)
        update(first, -(logs * advantage).mean())


def closures():
    net = make_net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
    for x, y in data(4):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def gradients_set_by_hand():
    net = make_net()
    optimizer = sgd(net)
    for x, y in data():
        loss = F.cross_entropy(net(x), y)
        parameters = list(net.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()


def evolution_without_backward():
    net = make_net()
    optimizer = sgd(net)
    for _ in data():
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def attention():
    attend, head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)
    optimizer = sgd(attend, head)
    for x, y in data():
        hidden, _ = attend(x[:, None], x[:, None], x[:, None])
        update(optimizer, F.cross_entropy(head(hidden[:, 0]), y))


CLEAN = [
    straight_through,
    logged_item,
    frozen_backbone_under_no_grad,
    teacher,
    target_network,
    averaged_copy,
    experts_take_turns,
    random_depth,
    alternating_optimizers,
    one_optimizer_two_phases,
    thawed_later,
    bias_before_a_norm,
    fit(ListedToo),
    fit(HiddenLossNetwork),
    fit(HiddenFrozen),
    list_handed_over_by_hand,
    checkpoint_without_reentry,
    scalar_parameter,
    actor_and_critic,
    closures,
    gradients_set_by_hand,
    evolution_without_backward,
    attention,
]


@pytest.mark.parametrize("loop", CLEAN, ids=lambda loop: loop.__name__)
def test_nothing_is_said_of_loops_that_train_what_they_own(audited, loop):
    assert audited(loop).findings == ()


def test_nothing_is_left_on_modules_that_a_copy_or_a_file_would_keep(audited):
    net = Unused()
    optimizer = sgd(net)
    call = nn.Module.__call__

    def loop():
        for x, y in data():
            update(optimizer, F.cross_entropy(net(x), y))
            copy.deepcopy(net)
            file = io.BytesIO()
            torch.save(net.eval(), file)
            assert b"gradcheck_suite" not in file.getvalue()
            net.train()
            assert not any(module._forward_hooks for module in net.modules())

    audited(loop)
    assert nn.Module.__call__ is call
