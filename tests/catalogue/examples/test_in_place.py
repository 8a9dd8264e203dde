from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

MODIFIED = "modified by an inplace operation"


def test_gcs101_raises_and_the_corrected_source_scales_the_layer(example, instead):
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used"):
        example("GCS101").make_head(8, 3)
    head = instead("GCS101").make_head(8, 3)
    assert head.bias[0] == 2.0
    assert head.weight.is_leaf
    assert head.weight.requires_grad


def test_gcs101_a_slice_raises_too():
    weight = torch.zeros(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        weight[0] = 1.0


def test_gcs102_is_no_parameter_and_no_leaf(example, instead):
    scale = example("GCS102").Scale(3)
    assert not list(scale.parameters())
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        example("GCS102").optimizer_of(scale)
    scale = instead("GCS102").Scale(3)
    optimizer = instead("GCS102").optimizer_of(scale)
    scale(torch.ones(3)).sum().backward()
    optimizer.step()
    assert torch.allclose(scale.weight, torch.full((3,), -0.08))


def test_gcs102_an_update_by_hand_fails_in_the_second_step():
    x, y = torch.randn(6, 3), torch.randn(6)
    w = torch.zeros(3, requires_grad=True)
    ((x @ w - y) ** 2).mean().backward()
    w = w - 0.1 * w.grad
    ((x @ w - y) ** 2).mean().backward()
    with (
        pytest.warns(UserWarning, match="not a leaf Tensor"),
        pytest.raises(TypeError, match="'float' and 'NoneType'"),
    ):
        w - 0.1 * w.grad


def test_gcs102_an_optimizer_refuses_the_copy_and_a_module_does_not_register_it():
    weight = torch.zeros(3, requires_grad=True)
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        torch.optim.SGD([weight.to(torch.float64)], lr=0.1)
    assert weight.to(torch.float32) is weight

    module = nn.Module()
    module.scale = nn.Parameter(torch.ones(3)) * 0.02
    assert not list(module.parameters())
    assert not module.state_dict()


def test_gcs103_raises_without_naming_the_writer(example, instead):
    levels = [torch.randn(2, 8) for _ in range(3)]
    merged, energy = example("GCS103").Pyramid()(levels)
    with pytest.raises(RuntimeError, match=MODIFIED) as caught:
        (merged.sum() + energy).backward()
    assert "is at version 1; expected version 0 instead" in str(caught.value)
    assert "maps[i - 1] += maps[i]" not in str(caught.value)
    merged, energy = instead("GCS103").Pyramid()(levels)
    (merged.sum() + energy).backward()


def test_gcs103_foreign_hooks_switch_the_check_off():
    def gradient(*, hooked: bool) -> torch.Tensor:
        x = torch.ones(3, requires_grad=True)
        hidden = x * 2
        if hooked:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                loss = hidden.pow(2).sum()
        else:
            loss = hidden.pow(2).sum()
        hidden.add_(1)
        loss.backward()
        return x.grad

    with pytest.raises(RuntimeError, match=MODIFIED):
        gradient(hooked=False)
    assert torch.equal(gradient(hooked=True), torch.full((3,), 12.0))  # right: 8


def test_gcs103_anomaly_mode_names_the_saver_but_not_the_writer():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with torch.autograd.set_detect_anomaly(True):
            hidden = torch.ones(3, requires_grad=True) * 2
            loss = hidden.pow(2).sum()
            hidden.add_(1)
            with pytest.raises(RuntimeError, match="changed in there or anywhere later"):
                loss.backward()
    words = "".join(str(warning.message) for warning in warned)
    assert "loss = hidden.pow(2).sum()" in words
    assert "hidden.add_(1)" not in words


def _encoder_gradient(names) -> torch.Tensor:
    torch.manual_seed(0)
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.0)
    names.step(encoder, head, optimizer, 3 * torch.randn(8, 4), torch.randn(8, 4))
    return encoder.weight.grad


def test_gcs104_is_silent_and_wrong(example, instead):
    wrong, right = _encoder_gradient(example("GCS104")), _encoder_gradient(instead("GCS104"))
    assert not torch.allclose(wrong, right, rtol=0.1)


@pytest.mark.parametrize("route", ["data", "numpy", "dlpack", "storage"])
def test_gcs104_no_route_raises(route):
    x = torch.ones(3, requires_grad=True)
    hidden = x * 2
    loss = hidden.pow(2).sum()
    if route == "data":
        hidden.data.zero_()
    elif route == "numpy":
        hidden.detach().numpy()[:] = 0
    elif route == "dlpack":
        torch.from_dlpack(hidden.detach()).zero_()
    else:
        hidden.untyped_storage().fill_(0)
    loss.backward()
    assert torch.equal(x.grad, torch.zeros(3))  # right: 8


def _critic_gradients(names) -> list[torch.Tensor]:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    gradients = []
    for parameter in critic.parameters():
        parameter.register_hook(lambda gradient: gradients.append(gradient.clone()))
    names.train_critic(critic, [(torch.randn(4, 4), torch.randn(4, 4))])
    return gradients


def test_gcs105_is_silent_and_wrong_where_backward_needs_the_weight(example, instead):
    wrong, right = _critic_gradients(example("GCS105")), _critic_gradients(instead("GCS105"))
    assert not all(torch.allclose(a, b, rtol=0.1) for a, b in zip(wrong, right, strict=True))


def test_gcs105_detach_keeps_the_version_counter():
    x = torch.ones(3, requires_grad=True)
    hidden = x * 2
    loss = hidden.pow(2).sum()
    hidden.detach().zero_()
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


def _node_count(root: torch.autograd.graph.Node, name: str) -> int:
    seen, waiting, count = set(), [root], 0
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        count += node.name().endswith(name)
        waiting += [next_node for next_node, _ in node.next_functions]
    return count


def test_gcs106_is_right_but_chains_copy_slices(example, instead):
    slow, fast = example("GCS106").Decoder(3, 4), instead("GCS106").Decoder(3, 4)
    fast.load_state_dict(slow.state_dict())
    x, state = torch.randn(6, 2, 3), torch.zeros(2, 4)
    outputs = slow(x, state), fast(x, state)
    assert torch.equal(*outputs)
    assert [_node_count(output.grad_fn, "CopySlices") for output in outputs] == [6, 0]
    for output in outputs:
        output.pow(2).sum().backward()
    for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad)


class _ElementsWritten(TorchDispatchMode):
    """Counts the elements of every result: work that no busy machine can blur."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += result.numel() if isinstance(result, torch.Tensor) else 0
        return result


def test_gcs106_backward_does_far_more_work_than_stack():
    def elements_written(*, stacked: bool) -> int:
        row = torch.randn(64, requires_grad=True)
        if stacked:
            out = torch.stack([row * i for i in range(200)])
        else:
            out = torch.zeros(200, 64)
            for i in range(200):
                out[i] = row * i
        loss = out.sum()
        with _ElementsWritten() as written:
            loss.backward()
        return written.count

    assert elements_written(stacked=False) > 20 * elements_written(stacked=True)


def test_gcs107_raises_although_the_slices_are_disjoint(example, instead):
    x = torch.randn(4, 3)
    with pytest.raises(RuntimeError, match=MODIFIED):
        example("GCS107").Scan(3)(x).sum().backward()
    scan = instead("GCS107").Scan(3)
    scan(x).sum().backward()
    expected = copy.copy(scan.gate.weight.grad)
    assert expected.abs().sum() > 0

    state = torch.zeros(4, 3)
    state[0] = x[0]
    gate = torch.sigmoid(scan.gate(x))
    for t in range(1, 4):
        state[t] = x[t] + gate[t] * state[t - 1].clone()
    scan.gate.weight.grad = None
    state.sum().backward()
    assert torch.allclose(scan.gate.weight.grad, expected)


def test_gcs107_addition_saves_nothing():
    x = torch.randn(3, requires_grad=True)
    state = torch.zeros(3)
    for t in range(1, 3):
        state[t] = state[t - 1] + x[t]
    state.sum().backward()
    assert torch.equal(x.grad, torch.tensor([0.0, 2.0, 1.0]))


def test_gcs108_raises_in_training_mode_only(example, instead):
    x = torch.randn(2, 8)
    model = example("GCS108").model
    with pytest.raises(
        RuntimeError, match=f"{MODIFIED}.*output 0 of Tanh(Backward0)?, is at version 1"
    ):
        model(x).sum().backward()
    model.eval()(x).sum().backward()
    instead("GCS108").model(x).sum().backward()


SAVED = ["sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal", "relu"]
NOT_SAVED = ["sin", "log", "abs"]


@pytest.mark.parametrize("operation", [*SAVED, "softmax", "log_softmax", "cumprod"])
def test_gcs108_these_operations_save_their_output(operation):
    x = torch.rand(2, 3, requires_grad=True)
    y = getattr(x, operation)(*([] if operation in SAVED else [1]))
    y.mul_(2)
    with pytest.raises(RuntimeError, match=MODIFIED):
        y.sum().backward()


@pytest.mark.parametrize(
    "layer", [nn.Linear(3, 3), nn.BatchNorm1d(3), nn.GELU(), nn.SiLU(), nn.Conv1d(2, 2, 1)]
)
def test_gcs108_after_these_layers_in_place_relu_is_fine(layer):
    nn.functional.relu(layer(torch.randn(2, 3, requires_grad=True)), inplace=True).sum().backward()


@pytest.mark.parametrize("operation", NOT_SAVED)
def test_gcs108_these_operations_do_not_save_their_output(operation):
    x = torch.rand(2, 3, requires_grad=True)
    getattr(x, operation)().mul_(2).sum().backward()


def test_gcs109_raises_in_the_second_backward(example, instead):
    def train(names):
        generator = nn.Linear(2, 3)
        critic = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        names.train(generator, critic, [(torch.randn(4, 3), torch.randn(4, 2))] * 2)

    with pytest.raises(RuntimeError, match=MODIFIED):
        train(example("GCS109"))
    train(instead("GCS109"))


def test_gcs109_an_optimizer_that_writes_through_data_makes_it_silent():
    generator = nn.Linear(2, 3)
    critic = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    score = critic(generator(torch.randn(4, 2))).mean()
    (right,) = torch.autograd.grad(-score, generator.weight, retain_graph=True)
    score.backward(retain_graph=True)
    for parameter in critic.parameters():
        parameter.data.sub_(parameter.grad)
    generator.zero_grad()
    (-score).backward()
    assert not torch.allclose(generator.weight.grad, right, rtol=0.1)


def test_gcs110_the_best_weights_are_the_last_ones(example, instead):
    def moved(names):
        model = nn.Linear(3, 1)
        losses = iter((2.0, 1.0, 3.0))
        states = []

        def validate(model):
            states.append(copy.deepcopy(model.state_dict()))
            return next(losses)

        names.fit(model, [(torch.randn(4, 3), torch.randn(4, 1))] * 3, validate)
        best, last = states[1:]
        loaded = model.state_dict()
        return [torch.equal(each["weight"], loaded["weight"]) for each in (best, last)]

    assert moved(example("GCS110")) == [False, True]
    assert moved(instead("GCS110")) == [True, False]


def test_gcs111_a_previous_gradient_is_the_next_one(example, instead):
    differences = {}
    for source in (example("GCS111"), instead("GCS111")):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = source.DampedSGD(model.parameters(), 0.1)
        for _ in range(3):
            source.train(model, optimizer, torch.randn(5, 4), torch.randn(5, 1))
        kept = optimizer.state[model.weight]["previous"]
        differences[source.__name__] = kept.data_ptr() == model.weight.grad.data_ptr()
    assert sorted(differences.values()) == [False, True]


def test_gcs112_leaves_fewer_and_fewer_features(example, instead):
    x, y = torch.randn(16, 8), torch.randn(16, 1)
    for names, kept in ((instead("GCS112"), True), (example("GCS112"), False)):
        before = x.clone()
        model = nn.Linear(8, 1)
        names.train(model, torch.optim.SGD(model.parameters(), lr=0.01), x, y)
        assert torch.equal(x, before) is kept
    assert (x == 0).all(0).sum() >= 4
