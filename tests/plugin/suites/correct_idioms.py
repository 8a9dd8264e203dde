"""A suite of right tests that come close to mistakes: audited, each of them must pass."""

from __future__ import annotations

import copy
import io
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

X, Y = torch.ones(6, 4), torch.zeros(6, 1)


def make(seed=0, kind=torch.optim.SGD, **options):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, kind(model.parameters(), **{"lr": 0.05, **options})


def loss_of(model):
    return functional.mse_loss(model(X), Y)


def step(model, optimizer):
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    return loss


def gradients_of(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


# Losses that are compared.


def test_losses_in_a_list_go_down():
    model, optimizer = make()
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    assert losses[-1] < losses[0]


def test_losses_from_a_helper_go_down():
    def train(steps):
        model, optimizer = make()
        losses = []
        for _ in range(steps):
            losses.append(step(model, optimizer))  # noqa: PERF401 - as people write
        return losses

    losses = train(5)
    assert sorted(losses, reverse=True) == losses


def test_the_loss_before_is_kept_for_one_step():
    model, optimizer = make()
    before = None
    for _ in range(5):
        loss = step(model, optimizer)
        assert before is None or loss < before
        before = loss


def test_first_and_last_loss():
    model, optimizer = make()
    first = loss_of(model)
    for _ in range(5):
        last = step(model, optimizer)
    assert last < first


def test_outputs_in_a_list_are_compared():
    model, _ = make()
    outputs = [model(torch.ones(size, 4)) for size in range(1, 9)]
    assert [len(output) for output in outputs] == list(range(1, 9))


# Backward, called otherwise than in training.


def test_backward_twice_on_purpose():
    model, _ = make()
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    once = gradients_of(model)
    loss.backward()
    for before, after in zip(once, gradients_of(model), strict=True):
        torch.testing.assert_close(after, 2 * before)


def test_gradients_add_up():
    model, _ = make()
    loss_of(model).backward()
    once = gradients_of(model)
    loss_of(model).backward()
    for before, after in zip(once, gradients_of(model), strict=True):
        torch.testing.assert_close(after, 2 * before)


def test_micro_batches_are_as_good_as_one_batch():
    model, _ = make()
    other = copy.deepcopy(model)
    x = torch.randn(8, 4)
    model(x).mean().backward()
    for part in x.chunk(4):
        (other(part).mean() / 4).backward()
    for one, two in zip(gradients_of(model), gradients_of(other), strict=True):
        torch.testing.assert_close(one, two)


def test_what_needs_no_gradient_has_none():
    model, _ = make()
    assert all(parameter.grad is None for parameter in model.parameters())
    model[0].requires_grad_(False)
    loss_of(model).backward()
    assert model[0].weight.grad is None
    assert model[2].weight.grad is not None


def test_a_detached_branch_gets_none():
    (left, _), (right, _) = make(0), make(1)
    (left(X).detach() + right(X)).sum().backward()
    assert left[0].weight.grad is None
    assert right[0].weight.grad is not None


def test_infinite_gradient():
    x = torch.zeros(2, requires_grad=True)
    x.sqrt().sum().backward()
    assert x.grad.isinf().all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_functional_transforms():
    model, _ = make()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values, x, y):
        return functional.mse_loss(functional_call(model, values, (x,)), y)

    whole = grad(loss)(parameters, X, Y)
    parts = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, X, Y)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name].mean(0), gradient)
    assert hessian(lambda x: (x**3).sum())(torch.ones(2)).shape == (2, 2)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_is_as_plain(reentrant):
    model, _ = make()
    x = torch.randn(3, 4, requires_grad=True)
    (plain,) = torch.autograd.grad(model(x).sum(), x)
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(x.grad, plain)


def test_compiled_is_as_eager():
    model, _ = make()
    loss_of(torch.compile(model, backend="eager")).backward()
    compiled = gradients_of(model)
    model.zero_grad()
    loss_of(model).backward()
    for one, two in zip(compiled, gradients_of(model), strict=True):
        torch.testing.assert_close(one, two)


# What torch refuses.


class Short(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, a, b):
        return a * b

    @staticmethod
    def backward(_ctx, gradient):
        return gradient


class Raises(Short):
    @staticmethod
    def backward(_ctx, _gradient):
        raise KeyError("mine")


def test_backward_a_second_time_is_refused():
    model, _ = make()
    loss = loss_of(model)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_loss_of_frozen_parameters_is_refused():
    model, _ = make()
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss_of(model.requires_grad_(False)).backward()


def test_a_loss_without_graph_is_refused():
    model, _ = make()
    with torch.no_grad():
        loss = loss_of(model)
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss.backward()


def test_a_write_into_a_leaf_is_refused():
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        leaf.add_(1)


def test_too_few_gradients_are_refused():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        Short.apply(x, x).sum().backward()


def test_what_backward_raises_arrives():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(KeyError, match="mine"):
        Raises.apply(x, x).sum().backward()


def test_a_state_that_was_carried_over_is_refused():
    cell = nn.RNN(3, 3)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    out, state = cell(torch.ones(2, 1, 3))
    out.sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="second time"):
        cell(torch.ones(2, 1, 3), state)[0].sum().backward()


def test_unscaling_twice_is_refused():
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model)).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="unscale_"):
        scaler.unscale_(optimizer)


# Optimizers and schedules.


def test_a_schedule_without_training():
    _, optimizer = make(lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == [1, 0.5, 0.25, 0.125]


def test_an_optimizer_with_gradients_put_by_hand():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(3):
        parameter.grad = torch.ones(3)
        optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.7))


def test_momentum_with_one_gradient():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.sum().backward()
    for _ in range(3):
        optimizer.step()
    assert parameter[0].item() == pytest.approx(1 - 0.1 * (1 + 1.9 + 2.71))


def test_an_optimizer_without_gradients_moves_nothing():
    model, optimizer = make(kind=torch.optim.Adam)
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_descent_by_hand():
    model, optimizer = make()
    other = copy.deepcopy(model)
    for _ in range(3):
        step(model, optimizer)
        other.zero_grad()
        loss_of(other).backward()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.sub_(0.05 * parameter.grad)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_clipped_twice():
    model, _ = make()
    (100 * loss_of(model)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e-3) < norm


def test_gradients_are_looked_at_after_the_step():
    model, optimizer = make()
    step(model, optimizer)
    assert nn.utils.clip_grad_norm_(model.parameters(), float("inf")) > 0


def test_a_closure():
    model, optimizer = make(kind=torch.optim.LBFGS)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first


def test_steps_with_nan_are_skipped():
    model, optimizer = make()
    for number in range(3):
        optimizer.zero_grad()
        (loss_of(model) * (float("nan") if number == 1 else 1)).backward()
        if all(gradient.isfinite().all() for gradient in gradients_of(model)):
            optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


# Several models.


def test_two_copies_learn_the_same():
    model, optimizer = make()
    other = copy.deepcopy(model)
    second = torch.optim.SGD(other.parameters(), lr=0.05)
    for _ in range(3):
        step(model, optimizer)
        step(other, second)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_running_average():
    model, optimizer = make(kind=torch.optim.Adam)
    average = copy.deepcopy(model).requires_grad_(False)
    for _ in range(3):
        step(model, optimizer)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
    assert not torch.equal(average[0].weight, model[0].weight)


def test_frozen_layers_stay():
    model, _ = make()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    for _ in range(3):
        step(model, optimizer)
    assert torch.equal(before, model[0].weight)


def test_saved_and_loaded():
    model, optimizer = make(kind=torch.optim.Adam)
    step(model, optimizer)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    other, second = make(5, kind=torch.optim.Adam)
    file.seek(0)
    weights, state = torch.load(file)
    other.load_state_dict(weights)
    second.load_state_dict(state)
    step(model, optimizer)
    step(other, second)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_adversaries():
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    first, second = (torch.optim.Adam(m.parameters()) for m in (critic, generator))
    for _ in range(4):
        fake = generator(torch.randn(5, 2))
        first.zero_grad()
        (critic(fake.detach()).mean() - critic(torch.randn(5, 2)).mean()).backward()
        first.step()
        second.zero_grad()
        (-critic(fake).mean()).backward()
        second.step()


def test_an_input_is_optimised():
    model, _ = make()
    model.requires_grad_(False)
    x = X.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(lambda _: model(x)).backward()
        optimizer.step()


def test_attacked_step_by_step():
    model, _ = make()
    x = X.clone()
    for _ in range(4):
        x = x.detach().requires_grad_()
        functional.mse_loss(model(x), Y).backward()
        x = x + 0.1 * x.grad.sign()


def test_steps_ahead_are_differentiated():
    model, optimizer = make()
    for _ in range(2):
        optimizer.zero_grad()
        fast = dict(model.named_parameters())
        for _ in range(2):
            inner = functional.mse_loss(functional_call(model, fast, (X,)), Y)
            slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), slopes, strict=True)}
        functional.mse_loss(functional_call(model, fast, (X,)), Y).backward()
        optimizer.step()


def test_several_threads_train():
    def train(seed):
        model, optimizer = make(seed)
        return [step(model, optimizer).item() for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        assert all(losses[-1] < losses[0] for losses in pool.map(train, range(3)))


def test_own_gradients_are_checked():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.sin, (x,))
    assert torch.autograd.gradgradcheck(torch.sin, (x,))


def test_anomaly_mode_finds_nan():
    x = torch.zeros(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan"):
            ((x * 0) / x).sum().backward()
