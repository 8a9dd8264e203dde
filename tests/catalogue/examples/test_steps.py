from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook


def _reference(model, loader, *, lr=0.1, optimizer_type=torch.optim.SGD, clip=None):
    """Train a copy of the model as it should be done."""
    model = copy.deepcopy(model)
    optimizer = optimizer_type(model.parameters(), lr=lr)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


def test_gcs301_applies_the_sum_of_all_gradients(example, instead, batches, snapshot, same):
    model = nn.Linear(8, 1)
    right = snapshot(_reference(model, batches))
    broken, fixed = copy.deepcopy(model), copy.deepcopy(model)

    gradients = []
    broken.weight.register_hook(lambda gradient: gradients.append(gradient.clone()))
    example("GCS301").train(broken, batches)
    assert torch.allclose(broken.weight.grad, sum(gradients))
    assert not same(snapshot(broken), right)

    instead("GCS301").train(fixed, batches)
    assert same(snapshot(fixed), right)


def test_gcs301_acts_like_momentum_without_decay(example, batches, snapshot):
    model = nn.Linear(8, 1)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=1.0)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(reference(x), y).backward()
        optimizer.step()
    example("GCS301").train(model, batches)
    for a, b in zip(snapshot(model), snapshot(reference), strict=True):
        assert torch.allclose(a, b)


def test_gcs302_makes_every_step_a_no_op(example, instead, batches, snapshot, same):
    model = nn.Linear(8, 1)
    before, right = snapshot(model), snapshot(_reference(model, batches))
    example("GCS302").train(model, batches)
    assert same(snapshot(model), before)
    instead("GCS302").train(model, batches)
    assert same(snapshot(model), right)


def test_gcs303_trains_nothing(example, instead, batches, snapshot, same):
    model = nn.Linear(8, 1)
    before = snapshot(model)
    right = snapshot(_reference(model, batches, lr=1e-3, optimizer_type=torch.optim.Adam))
    example("GCS303").train(model, batches)
    assert same(snapshot(model), before)
    instead("GCS303").train(model, batches)
    assert same(snapshot(model), right)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    ],
)
@pytest.mark.parametrize("to_none", [True, False])
def test_gcs303_zero_gradients_still_move_where_none_do_not(make, to_none, snapshot, same):
    model = nn.Linear(8, 1)
    optimizer = make(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=to_none)
    before = snapshot(model)
    optimizer.step()
    assert same(snapshot(model), before) is to_none


def test_gcs304_clipping_after_the_step_has_no_effect(example, instead, snapshot, same):
    loader = [(10 * torch.randn(4, 8), 10 * torch.randn(4, 1)) for _ in range(3)]
    model = nn.Linear(8, 1)
    unclipped = snapshot(_reference(model, loader))
    clipped = snapshot(_reference(model, loader, clip=1.0))
    broken = copy.deepcopy(model)
    example("GCS304").train(broken, loader)
    assert same(snapshot(broken), unclipped)
    instead("GCS304").train(model, loader)
    assert same(snapshot(model), clipped)
    assert not same(clipped, unclipped)


@pytest.mark.one_torch
def test_gcs304_a_used_up_iterator_clips_nothing():
    model = nn.Linear(8, 1)
    parameters = model.parameters()
    torch.optim.SGD(parameters, lr=0.1)
    (100 * model(torch.ones(1, 8))).sum().backward()
    before = model.weight.grad.clone()
    with pytest.warns(UserWarning, match="`parameters` is an empty generator"):
        nn.utils.clip_grad_norm_(parameters, 1.0)
    assert torch.equal(model.weight.grad, before)


@pytest.fixture
def amp_batches():
    return [(torch.randn(4, 8), 10 * torch.ones(4, 1)) for _ in range(2)]


def test_gcs305_shrinks_every_step_by_the_scale(example, instead, amp_batches, snapshot):
    def moved(names):
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        before = snapshot(model)
        names.train(model, amp_batches, device="cpu")
        return sum((a - b).norm() for a, b in zip(snapshot(model), before, strict=True))

    ratio = moved(instead("GCS305")) / moved(example("GCS305"))
    assert 30_000 < ratio < 130_000


def test_gcs306_warns_and_never_uses_the_first_rate(example, instead, batches):
    def rates(names):
        model, seen = nn.Linear(8, 1), []
        handle = register_optimizer_step_pre_hook(
            lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"])
        )
        try:
            names.train(model, batches)
        finally:
            handle.remove()
        return seen

    with pytest.warns(UserWarning, match="before `optimizer.step") as caught:
        assert rates(example("GCS306")) == pytest.approx([0.1, 0.01, 0.001])
    assert len(caught) == 1
    assert rates(instead("GCS306")) == pytest.approx([1.0, 0.1, 0.01])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).relu())


def test_gcs307_the_new_head_gets_gradients_and_stays(example, instead):
    loader = [(torch.randn(4, 8), torch.tensor([0, 1, 2, 1]))] * 3
    for names, moves in ((example("GCS307"), False), (instead("GCS307"), True)):
        model = Classifier()
        torch.manual_seed(1)
        fresh_head = nn.Linear(4, 3)
        torch.manual_seed(1)
        names.finetune(model, loader, 3)
        assert model.head.weight.grad.abs().sum() > 0
        assert (not torch.equal(model.head.weight, fresh_head.weight)) is moves


def test_gcs307_only_a_wholly_empty_list_raises():
    parameters = nn.Linear(2, 2).parameters()
    list(parameters)
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        torch.optim.SGD(parameters, lr=0.1)
    groups = [{"params": parameters}, {"params": nn.Linear(2, 2).parameters()}]
    assert [len(group["params"]) for group in torch.optim.SGD(groups, lr=0.1).param_groups] == [
        0,
        2,
    ]


def test_gcs308_the_assigned_parameters_never_change(example, instead, batches, snapshot, same):
    state = nn.Linear(8, 1).state_dict()
    for names, moves in ((example("GCS308"), False), (instead("GCS308"), True)):
        model = nn.Linear(8, 1)
        names.resume(model, copy.deepcopy(state), batches)
        assert (not same(snapshot(model), list(state.values()))) is moves


def test_gcs309_the_critic_also_descends_the_other_loss(example, instead):
    def first_critic_gradient(names):
        torch.manual_seed(0)
        generator, critic = nn.Linear(2, 3), nn.Linear(3, 1, bias=False)
        before = critic.weight.detach().clone()
        names.train(generator, critic, [(torch.randn(4, 3), torch.randn(4, 2))])
        return (before - critic.weight.detach()) / 0.01

    def parts():
        torch.manual_seed(0)
        generator, critic = nn.Linear(2, 3), nn.Linear(3, 1, bias=False)
        real, noise = torch.randn(4, 3), torch.randn(4, 2)
        fake = generator(noise).detach()
        of_generator = torch.autograd.grad(-critic(fake).mean(), critic.weight)[0]
        own = torch.autograd.grad(critic(fake).mean() - critic(real).mean(), critic.weight)[0]
        return own, of_generator

    own, of_generator = parts()
    assert torch.allclose(first_critic_gradient(instead("GCS309")), own, atol=1e-4)
    assert torch.allclose(first_critic_gradient(example("GCS309")), own + of_generator, atol=1e-4)


def test_gcs310_steps_with_scaled_gradients(example, instead, amp_batches, snapshot):
    def moved(names):
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        before = snapshot(model)
        names.train(model, amp_batches[:1], device="cpu")
        return sum((a - b).norm() for a, b in zip(snapshot(model), before, strict=True))

    assert moved(example("GCS310")) / moved(instead("GCS310")) == pytest.approx(65_536, rel=0.01)


def _scaler_calls(*calls: str) -> torch.Tensor:
    """Run two turns of these calls and return how far the weight moved."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).pow(2).mean()
        for call in calls:
            if call == "scaled backward":
                scaler.scale(loss).backward()
            elif call == "scale unused":
                scaler.scale(loss)
            elif call == "backward":
                loss.backward()
            elif call == "update":
                scaler.update()
            else:
                getattr(scaler, call)(optimizer)
    return (model.weight.detach() - before).norm()


@pytest.mark.parametrize(
    ("calls", "error", "words"),
    [
        (["scaled backward", "step"], RuntimeError, "already been called since the last update"),
        (["backward", "step", "update"], AssertionError, "Attempted step but _scale is None"),
        (["scaled backward", "update", "step"], AssertionError, "No inf checks were recorded"),
        (["scaled backward", "unscale_", "unscale_"], RuntimeError, "already been called"),
        (["scaled backward", "step", "unscale_"], RuntimeError, "being called after step"),
        (["scaled backward", "step", "step"], RuntimeError, "already been called since"),
    ],
)
def test_gcs310_these_orders_raise(calls, error, words):
    with pytest.raises(error, match=words):
        _scaler_calls(*calls)


def test_gcs310_an_unused_scaled_loss_shrinks_the_step():
    right = _scaler_calls("scaled backward", "unscale_", "step", "update")
    tiny = _scaler_calls("scale unused", "backward", "step", "update")
    assert right / tiny > 10_000


def test_gcs311_multiplies_the_gradient_of_the_full_batch(example, instead):
    batch = torch.randn(8, 3), torch.randn(8, 1)
    parts = list(zip(*(each.split(2) for each in batch), strict=True))

    def gradient(train, batches, accumulation_steps):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        before = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        train(model, optimizer, batches, accumulation_steps)
        return before - model.weight.detach()

    full = gradient(example("GCS311").train, [batch], 1)
    assert torch.allclose(gradient(example("GCS311").train, parts, 4), 4 * full, atol=1e-5)
    assert torch.allclose(gradient(instead("GCS311").train, parts, 4), full, atol=1e-5)


def test_gcs312_takes_two_steps_for_each_gradient(example, instead, batches):
    def moved(train):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 1))
        before = model[-1].weight.detach().clone()
        train(model, batches[:1])
        return before - model[-1].weight.detach()

    once = moved(instead("GCS312").train)
    assert torch.allclose(moved(example("GCS312").train), 1.1 * once, rtol=1e-4, atol=1e-6)


def test_gcs313_leaves_the_model_as_it_was(example, instead, batches, snapshot, same):
    model = nn.Linear(8, 1)
    before = snapshot(model)
    example("GCS313").train(model, batches, 2)
    assert same(snapshot(model), before)
    instead("GCS313").train(model, batches, 2)
    assert not same(snapshot(model), before)


def test_gcs314_computes_with_weights_from_before_the_first_step(example, instead, batches):
    def losses(train):
        torch.manual_seed(0)
        model, told = nn.Linear(8, 1), []
        model.register_forward_hook(lambda _m, given, out: told.append((given[0], out.detach())))
        x, y = next(iter(batches))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), [(x, y)] * 4)
        return [out for _, out in told]

    stale = losses(example("GCS314").train)
    assert all(torch.equal(each, stale[0]) for each in stale)
    fresh = losses(instead("GCS314").train)
    assert not torch.equal(fresh[1], fresh[0])


def test_gcs315_trains_the_last_layer_alone(example, instead, batches, snapshot, same):
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    first, last = snapshot(model[0]), snapshot(model[1])
    example("GCS315").train(model, batches)
    assert same(snapshot(model[0]), first)
    assert not same(snapshot(model[1]), last)
    assert model[0].weight.grad.any()
    instead("GCS315").train(model, batches)
    assert not same(snapshot(model[0]), first)


def test_gcs316_evaluation_leaves_other_weights(example, instead, batches, snapshot, same):
    for names, is_fixed in ((example("GCS316"), False), (instead("GCS316"), True)):
        model = nn.Linear(8, 1)
        average = names.Average(model.parameters())
        with torch.no_grad():
            model.weight.add_(1.0)
        before = snapshot(model)
        names.evaluate(model, average, batches[0])
        assert same(snapshot(model), before) is is_fixed


def test_gcs317_goes_on_at_the_rate_of_the_beginning(example, instead):
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]

    def rate(names):
        model, optimizer, decay = names.begin()
        names.train(model, optimizer, decay, data)
        checkpoint = names.save(model, optimizer, decay)
        return names.resume(checkpoint, data).param_groups[0]["lr"]

    assert rate(instead("GCS317")) == pytest.approx(0.1 * 0.5**8)
    assert rate(example("GCS317")) == pytest.approx(0.1 * 0.5**4)


def test_gcs318_clips_nothing_and_stays_in_training(example, instead, batches):
    for names, works in ((instead("GCS318"), True), (example("GCS318"), False)):
        model = names.train(batches)
        clipped = all(bool(each.grad.abs().max() <= 0.1) for each in model.parameters())
        assert clipped is works
        assert model.training is not works


def test_gcs319_moves_weights_by_the_rate_whatever_the_gradient(example, instead):
    torch.manual_seed(0)
    data = [(torch.randn(8, 8), torch.randn(8, 1)) for _ in range(10)]
    moves = {}
    for names, which in ((example("GCS319"), "anew"), (instead("GCS319"), "once")):
        model = nn.Linear(8, 1)
        path = [model.weight.detach().clone()]
        register = model.register_forward_pre_hook(
            lambda module, _, path=path: path.append(module.weight.detach().clone())
        )
        names.train(model, data)
        register.remove()
        moves[which] = (path[-1] - path[-2]).abs()
    assert torch.allclose(moves["anew"], torch.tensor(1e-3), rtol=1e-2)
    assert moves["once"].std() > 1e-4


def test_gcs320_keeps_the_first_rate(example, instead, batches):
    assert example("GCS320").train(batches).param_groups[0]["lr"] == pytest.approx(0.1)
    assert instead("GCS320").train(batches).param_groups[0]["lr"] < 0.1
