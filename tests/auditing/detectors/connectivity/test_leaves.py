"""Leaves that get gradients and nobody owns, or that an optimizer owns in vain, however kept."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.findings import Severity


def batches(count=10):
    for _ in range(count):
        yield torch.randn(6, 4), torch.randint(3, (6,))


def mlp(*, out=3):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, out))


def sgd(*modules, lr=0.05):
    return torch.optim.SGD(itertools.chain(*(each.parameters() for each in modules)), lr=lr)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class CenterLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(3, 3))

    def forward(self, features, y):
        return (features - self.centers[y]).square().sum(1).mean()


def loss_module_outside_of_the_model():
    model, criterion = mlp(), CenterLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # <- here
    for x, y in batches():
        out = model(x)
        update(optimizer, F.cross_entropy(out, y) + 0.1 * criterion(out, y))


def weights_of_two_losses():
    model, log_vars = mlp(), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam(model.parameters())  # <- here
    for x, y in batches():
        out = model(x)
        losses = torch.stack([F.cross_entropy(out, y), out.square().mean()])
        update(optimizer, (losses * torch.exp(-log_vars) + log_vars).sum())


def layer_between_teacher_and_student():
    student, teacher, regressor = mlp(), mlp(out=5).requires_grad_(False), nn.Linear(3, 5)
    optimizer = torch.optim.Adam(student.parameters())  # <- here
    for x, _ in batches():
        update(optimizer, F.mse_loss(regressor(student(x)), teacher(x)))


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()
        self.temperature = torch.ones(1, requires_grad=True)  # <- here

    def forward(self, x):
        return self.body(x) / self.temperature


def plain_tensor_as_attribute():
    model = Tempered()
    optimizer = sgd(model)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


class Converted(nn.Module):
    def __init__(self, convert):
        super().__init__()
        self.body = mlp().double()
        self.scale = convert(nn.Parameter(torch.ones(3)))  # <- here

    def forward(self, x):
        return self.body(x.double()) * self.scale


def parameter_converted_to_double():
    model = Converted(torch.Tensor.double)
    optimizer = sgd(model)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


def parameter_shifted_when_made():
    model = Converted(lambda tensor: tensor.to("cpu", torch.double) + 0.5)
    optimizer = sgd(model)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def thawed_after_the_optimizer_was_made(when=3, steps=12):
    model = Backbone()
    model.backbone.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05)  # <- here
    for step, (x, y) in enumerate(batches(steps)):
        if step == when:
            model.backbone.requires_grad_(True)
        update(optimizer, F.cross_entropy(model(x), y))


def thawed_late():
    model = Backbone()
    model.backbone.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05)  # <- here
    for step, (x, y) in enumerate(batches(50)):
        if step == 37:
            for each in model.backbone.parameters():
                each.requires_grad = True
        update(optimizer, F.cross_entropy(model(x), y))


def first_group_used_up():
    model = Backbone()
    backbone = (each for each in model.backbone.parameters() if each.requires_grad)
    assert len(list(backbone)) == 2
    groups = [{"params": backbone, "lr": 1e-3}, {"params": model.head.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.05)  # <- here
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


def prompt_bound_to_a_new_leaf_in_each_step():
    model, prompt = mlp().requires_grad_(False), torch.randn(1, 4).requires_grad_()
    optimizer = torch.optim.SGD([prompt], lr=0.5)
    for _ in range(10):
        update(optimizer, F.cross_entropy(model(prompt), torch.tensor([2])))
        prompt = F.normalize(prompt.detach(), dim=1).requires_grad_()  # <- here


class Clamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 3))

    def clamp(self):
        self.weight = nn.Parameter(self.weight.detach().clamp(min=0))  # <- here

    def forward(self, x):
        return x @ self.weight


def parameter_made_anew_by_a_method():
    model = Clamped()
    optimizer = sgd(model)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))
        model.clamp()


def leaf_moved_after_the_optimizer_was_made():
    weight = torch.randn(4, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.05)  # <- here
    weight = weight.detach().clone().requires_grad_()
    for x, y in batches():
        update(optimizer, F.cross_entropy(x @ weight, y))


class AutoEncoder:
    """An agent that is no module."""

    def __init__(self):
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)
        self.scale = nn.Parameter(torch.ones(4))
        trained = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.SGD(trained, lr=0.05)  # <- here

    def learn(self, x):
        loss = F.mse_loss(self.decoder(self.encoder(x)) * self.scale, x)
        update(self.optimizer, loss)


def parameter_of_an_object_that_is_no_module():
    agent = AutoEncoder()
    for x, _ in batches():
        agent.learn(x)


class MadeInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(out=5)

    def forward(self, x):
        return nn.Linear(5, 3)(self.body(x))  # <- here


def layer_made_in_forward():
    model = MadeInForward()
    optimizer = sgd(model)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


def bias_left_out_of_plain_tensors():
    first, second = torch.randn(4, 8, requires_grad=True), torch.randn(8, 3, requires_grad=True)
    bias = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([first, second], lr=0.05)  # <- here
    for x, y in batches():
        update(optimizer, F.cross_entropy((x @ first).tanh() @ second + bias, y))


def generator_whose_optimizer_has_the_critics_parameters():
    generator, critic = nn.Linear(3, 4), mlp(out=1)
    of_critic = torch.optim.Adam(critic.parameters())
    of_generator = torch.optim.Adam(critic.parameters())
    for x, _ in batches():
        fake = generator(torch.randn(6, 3))
        update(of_critic, critic(fake.detach()).mean() - critic(x).mean())
        update(of_generator, -critic(fake).mean())


def test_a_generator_that_nobody_owns_is_told(audited):
    session = audited(generator_whose_optimizer_has_the_critics_parameters)
    (finding,) = session.report.at_least(Severity.WARNING)
    assert finding.code == "GCS307"
    assert "and two optimizers own just the same" in finding.message


UNOWNED = [
    (layer_made_in_forward, MadeInForward, "2 parameters (3x5, 3) are made anew in each step"),
    (bias_left_out_of_plain_tensors, None, "a tensor (`bias`)"),
    (loss_module_outside_of_the_model, None, "`criterion.centers`"),
    (weights_of_two_losses, None, "`log_vars`"),
    (layer_between_teacher_and_student, None, "`regressor.weight`, `regressor.bias`"),
    (plain_tensor_as_attribute, Tempered, "is a tensor and no nn.Parameter"),
    (parameter_converted_to_double, Converted, "`scale` of Converted was computed from"),
    (parameter_shifted_when_made, Converted, "`scale` of Converted was computed from"),
    (thawed_after_the_optimizer_was_made, None, "frozen when SGD was made, and thawed later"),
    (thawed_late, None, "frozen when SGD was made, and thawed later"),
    (first_group_used_up, None, "a group of SGD has no parameters at all"),
    (prompt_bound_to_a_new_leaf_in_each_step, None, "`prompt` is another tensor in each step"),
    (parameter_made_anew_by_a_method, Clamped.clamp, "weight` is another tensor in each step"),
    (leaf_moved_after_the_optimizer_was_made, None, "`weight`"),
    (parameter_of_an_object_that_is_no_module, AutoEncoder.__init__, "scale`"),
]


@pytest.mark.parametrize(
    ("loop", "place", "words"), UNOWNED, ids=[bug[0].__name__ for bug in UNOWNED]
)
@pytest.mark.sampled(every=4)
def test_what_nobody_owns_is_told_with_its_line(audited, line_of, loop, place, words):
    session = audited(loop)
    found = session.report.at_least(Severity.WARNING)
    assert {finding.code for finding in found} <= {"GCS307", "GCS308"}, found
    (finding,) = [each for each in found if each.code == "GCS307"]
    assert finding.location.line == line_of(place or loop)
    assert words in finding.message
    assert " `0" not in finding.message


def critic_frozen_in_one_step_and_never_thawed():
    generator, critic = nn.Linear(3, 4), mlp(out=1)
    of_generator, of_critic = sgd(generator), sgd(critic)
    for step, (x, _) in enumerate(batches(12)):
        of_critic.zero_grad()
        loss = critic(generator(torch.randn(6, 3)).detach()).mean() - critic(x).mean()
        if loss.requires_grad:
            loss.backward()
        of_critic.step()  # <- here
        if step == 1:
            critic.requires_grad_(False)
        update(of_generator, -critic(generator(torch.randn(6, 3))).mean())


def test_what_is_frozen_for_a_turn_and_never_thawed_is_told(audited, line_of):
    session = audited(critic_frozen_in_one_step_and_never_thawed)
    found = [each for each in session.findings if each.code == "GCS406"]
    (finding,) = [each for each in found if each.severity is Severity.WARNING]
    assert finding.location.line == line_of(critic_frozen_in_one_step_and_never_thawed)
    assert "4 parameters, all that SGD owns, were frozen in step" in finding.message


def critic_frozen_for_each_turn_of_the_generator():
    generator, critic = nn.Linear(3, 4), mlp(out=1)
    of_generator, of_critic = sgd(generator), sgd(critic)
    for x, _ in batches(12):
        critic.requires_grad_(True)
        fake = generator(torch.randn(6, 3)).detach()
        update(of_critic, critic(fake).mean() - critic(x).mean())
        critic.requires_grad_(False)
        update(of_generator, -critic(generator(torch.randn(6, 3))).mean())


def flag_of_a_module():
    model = Backbone()
    model.backbone.requires_grad = False  # <- here
    optimizer = sgd(model)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


@pytest.mark.slow
def test_a_flag_of_a_module_that_freezes_nothing_is_told(audited, line_of, only):
    finding = only(audited(flag_of_a_module), "GCS409")
    assert finding.severity is Severity.ERROR
    assert finding.location.line == line_of(flag_of_a_module)
    assert (
        "`model.backbone.requires_grad = False` sets an attribute that nothing" in finding.message
    )


class Deep(nn.Module):
    def __init__(self, depth=12):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for block in self.blocks:
            x = x + 0.2 * block(x).tanh()
        return self.head(x)


def frozen_by_a_pattern(matches):
    model = Deep()
    for name, each in model.named_parameters():
        if matches(name):
            each.requires_grad_(False)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad])
    for x, y in batches(5):
        update(optimizer, F.cross_entropy(model(x), y))


@pytest.mark.parametrize(
    ("matches", "severities"),
    [
        (lambda name: name.startswith("blocks.1"), ["warning"]),
        (lambda name: "blocks.1." in name, ["note"]),
        (lambda name: name.startswith(("blocks.0.", "blocks.1.", "blocks.2.")), []),
        (lambda name: name.startswith(("blocks.10", "blocks.11")), []),
    ],
)
@pytest.mark.sampled(every=4)
def test_layers_frozen_by_a_pattern_that_takes_more_are_told(audited, matches, severities):
    session = audited(lambda: frozen_by_a_pattern(matches))
    found = [each for each in session.findings if each.code == "GCS406"]
    assert [each.severity.value for each in found] == severities
    for finding in found:
        assert "`model.blocks[1]`" in finding.message
        assert "`model.blocks[0]`" in finding.message


def bare_parameter_that_no_loss_depends_on():
    model, bias = mlp(), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([*model.parameters(), bias], lr=0.05)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))
    return bias


def bare_tensor_cut_off():
    model, scale = mlp(), torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.05)
    for x, y in batches():
        logits = model(x) * scale.detach()  # <- here
        update(optimizer, F.cross_entropy(logits, y))
    return scale


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scale = mlp(), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.body(x) * self.scale.data  # <- here


def parameter_of_a_module_cut_off():
    model = Detached()
    optimizer = sgd(model)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


@pytest.mark.parametrize(
    ("loop", "place", "name"),
    [
        (bare_parameter_that_no_loss_depends_on, None, "bias"),
        (bare_tensor_cut_off, bare_tensor_cut_off, "scale"),
        (parameter_of_a_module_cut_off, Detached, "model.scale"),
    ],
)
def test_a_leaf_that_an_optimizer_owns_in_vain_is_told(audited, line_of, loop, place, name):
    (finding,) = audited(loop).report.at_least(Severity.WARNING)
    assert finding.code == ("GCS403" if place is None else "GCS401")
    assert f"`{name}` got no gradient" in finding.message
    if place is not None:
        assert finding.location.line == line_of(place)


def adversaries(*, of_both):
    generator, critic = nn.Linear(3, 4), mlp(out=1)
    own = list(generator.parameters())
    both = [*own, *critic.parameters()] if of_both else own
    of_generator = torch.optim.SGD(both, lr=0.05)  # <- here
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.05)
    for x, _ in batches():
        fake = generator(torch.randn(6, 3))
        wrong, right = torch.zeros(6, 1), torch.ones(6, 1)
        judged = F.binary_cross_entropy_with_logits(critic(fake.detach()), wrong)
        update(of_critic, judged + F.binary_cross_entropy_with_logits(critic(x), right))
        update(of_generator, F.binary_cross_entropy_with_logits(critic(fake), right))


def test_an_optimizer_that_owns_the_opponent_as_well_is_told(audited, line_of):
    session = audited(lambda: adversaries(of_both=True))
    (finding,) = [each for each in session.findings if each.code == "GCS312"]
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(adversaries)
    assert "point against each other" in finding.message
    assert not audited(lambda: adversaries(of_both=False)).findings


def encoder_with_an_optimizer_of_its_own():
    encoder, head = nn.Linear(4, 8), nn.Linear(8, 3)
    decoder = nn.Linear(8, 4)
    first, second = sgd(encoder, head), sgd(encoder, decoder)
    of_encoder = sgd(encoder)
    for x, y in batches():
        update(first, F.cross_entropy(head(encoder(x).tanh()), y))
        update(second, F.mse_loss(decoder(encoder(x).tanh()), x))
        update(of_encoder, 0.01 * encoder(x).square().mean())


def features_of_a_fixed_network():
    model, features = mlp(), mlp(out=5).eval()
    optimizer = sgd(model)
    for x, _ in batches():
        update(optimizer, features(model(x) @ torch.ones(3, 4)).square().mean())


def points_of_an_equation():
    net = mlp(out=1)
    points = torch.rand(16, 4, requires_grad=True)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(10):
        (slope,) = torch.autograd.grad(net(points).sum(), points, create_graph=True)
        update(optimizer, (slope.sum(1) - 1).square().mean())


class Equation(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(out=1)
        self.points = torch.rand(16, 4, requires_grad=True)

    def forward(self):
        (slope,) = torch.autograd.grad(self.net(self.points).sum(), self.points, create_graph=True)
        return (slope.sum(1) - 1).square().mean()


def points_as_an_attribute():
    equation = Equation()
    optimizer = torch.optim.Adam(equation.parameters())
    for _ in range(10):
        update(optimizer, equation())


def gradients_of_copies_in_a_function():
    model = mlp()
    optimizer = sgd(model)

    def of_a_copy(x, y):
        worker = copy.deepcopy(model)
        loss = F.cross_entropy(worker(x), y)
        loss.backward()
        return loss, [each.grad for each in worker.parameters()]

    for x, y in batches():
        loss, gradients = of_a_copy(x, y)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        assert loss.isfinite()


def inputs_that_ask_for_gradients():
    model, x = mlp(), torch.randn(6, 4, requires_grad=True)
    optimizer = sgd(model)
    for _, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


def image_optimized_through_a_network():
    network, image = mlp(), torch.randn(1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([image])
    for _ in range(10):
        update(optimizer, network(image).square().mean())


def thawed_and_added():
    model = Backbone()
    model.backbone.requires_grad_(False)
    optimizer = sgd(model.head)
    for step, (x, y) in enumerate(batches()):
        if step == 4:
            model.backbone.requires_grad_(True)
            optimizer.add_param_group({"params": model.backbone.parameters()})
        update(optimizer, F.cross_entropy(model(x), y))


def thawed_with_a_new_optimizer():
    model = Backbone()
    model.backbone.requires_grad_(False)
    optimizer = sgd(model.head)
    for step, (x, y) in enumerate(batches()):
        if step == 4:
            model.backbone.requires_grad_(True)
            optimizer = sgd(model)
        update(optimizer, F.cross_entropy(model(x), y))


def center_that_is_moved_by_hand():
    model, criterion = mlp(), CenterLoss()
    optimizer = sgd(model)
    for x, y in batches():
        out = model(x)
        update(optimizer, F.cross_entropy(out, y) + criterion(out, y))
        with torch.no_grad():
            criterion.centers -= 0.1 * criterion.centers.grad
            criterion.centers.grad = None


def meta_learner():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        fast = copy.deepcopy(model)
        inner = sgd(fast)
        for _ in range(2):
            update(inner, F.cross_entropy(fast(x), y))
        F.cross_entropy(fast(x), y).backward()
        optimizer.zero_grad()
        for mine, its in zip(model.parameters(), fast.parameters(), strict=True):
            mine.grad = its.grad.clone()
        optimizer.step()


class Flagged(nn.Module):
    def __init__(self, *, requires_grad):
        super().__init__()
        self.body, self.requires_grad = mlp(), requires_grad
        for each in self.body.parameters():
            each.requires_grad_(requires_grad)

    def forward(self, x):
        return self.body(x)


def flag_that_a_class_keeps_and_obeys():
    model, fixed = mlp(), Flagged(requires_grad=False)
    optimizer = sgd(model)
    for x, _ in batches():
        update(optimizer, F.mse_loss(model(x), fixed(x)))


def stand_in_for_a_schedule():
    model, dummy = mlp(), torch.zeros(1, requires_grad=True)
    optimizer, other = sgd(model), torch.optim.SGD([dummy], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(other, 2)
    for x, y in batches():
        optimizer.param_groups[0]["lr"] = other.param_groups[0]["lr"]
        update(optimizer, F.cross_entropy(model(x), y))
        other.step()
        scheduler.step()


def norms_frozen_between_layers():
    layers = [each for _ in range(4) for each in (nn.Linear(4, 4), nn.LayerNorm(4))]
    model = nn.Sequential(*layers, nn.Linear(4, 3))
    for each in model:
        if isinstance(each, nn.LayerNorm):
            each.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for x, y in batches():
        update(optimizer, F.cross_entropy(model(x), y))


def penalty_on_slopes_alone():
    critic = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
    optimizer = sgd(critic)
    for x, _ in batches():
        x.requires_grad_()
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        update(optimizer, (slope.norm(dim=1) - 1).square().mean())


LOOK_ALIKES = [
    critic_frozen_for_each_turn_of_the_generator,
    features_of_a_fixed_network,
    points_of_an_equation,
    points_as_an_attribute,
    gradients_of_copies_in_a_function,
    inputs_that_ask_for_gradients,
    image_optimized_through_a_network,
    thawed_and_added,
    thawed_with_a_new_optimizer,
    center_that_is_moved_by_hand,
    meta_learner,
    flag_that_a_class_keeps_and_obeys,
    stand_in_for_a_schedule,
    norms_frozen_between_layers,
    penalty_on_slopes_alone,
    encoder_with_an_optimizer_of_its_own,
]


@pytest.mark.parametrize("loop", LOOK_ALIKES, ids=lambda loop: loop.__name__)
@pytest.mark.sampled(every=4)
def test_what_only_looks_like_it_is_a_note_at_most(audited, loop):
    report = audited(loop).report
    assert not report.at_least(Severity.WARNING)
    assert len(report.findings) <= 2
