from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

NO_GRAPH = "element 0 of tensors does not require grad and does not have a grad_fn"


def test_gcs401_the_term_is_a_constant(example, instead):
    for names, reached in ((example("GCS401"), False), (instead("GCS401"), True)):
        encoder, prior, decoder = nn.Linear(4, 2), nn.Linear(2, 1), nn.Linear(2, 4)
        parameters = [*encoder.parameters(), *prior.parameters(), *decoder.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        names.train(encoder, prior, decoder, optimizer, [torch.randn(8, 4)] * 2)
        assert encoder.weight.grad is not None
        assert (prior.weight.grad is not None) is reached


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: torch.tensor(x.sum().item()),
        lambda x: torch.tensor(float(x.sum().detach())),
        lambda x: x.detach().sum(),
        lambda x: torch.from_numpy(x.detach().numpy()).sum(),
        lambda x: x.argmax().float(),
        lambda x: (x > 0).float().mean(),
    ],
)
def test_gcs401_a_loss_that_is_cut_raises(cut):
    with pytest.raises(RuntimeError, match=NO_GRAPH):
        cut(torch.randn(3, requires_grad=True)).backward()


@pytest.mark.one_torch
def test_gcs401_torch_tensor_of_tensors_cuts_too():
    x = torch.randn(3, requires_grad=True)
    with pytest.warns(UserWarning, match="requires_grad=True to a scalar"):
        assert not torch.tensor([x[0], x[1]]).requires_grad


@pytest.mark.parametrize("operation", ["round", "floor", "sign"])
def test_gcs401_these_pass_on_exact_zeros(operation):
    x = torch.randn(3, requires_grad=True)
    getattr(x, operation)().sum().backward()
    assert torch.equal(x.grad, torch.zeros(3))


def test_gcs402_the_backbone_stays(example, instead, snapshot, same):
    loader = [(torch.randn(4, 8), torch.tensor([0, 1, 2, 1]))] * 2
    for names, moves in ((example("GCS402"), False), (instead("GCS402"), True)):
        backbone, head = nn.Linear(8, 4), nn.Linear(4, 3)
        before = snapshot(backbone), snapshot(head)
        names.train(backbone, head, loader)
        assert (not same(snapshot(backbone), before[0])) is moves
        assert (backbone.weight.grad is not None) is moves
        assert not same(snapshot(head), before[1])


def test_gcs402_a_loss_made_without_recording_raises():
    model, x = nn.Linear(3, 1), torch.randn(2, 3)
    for context in (torch.no_grad(), torch.inference_mode(), torch.set_grad_enabled(False)):
        with context:
            loss = model(x).sum()
        with pytest.raises(RuntimeError, match=NO_GRAPH):
            loss.backward()


def test_gcs402_inference_features_are_refused_by_the_next_layer():
    with torch.inference_mode():
        features = nn.Linear(3, 3)(torch.randn(2, 3))
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        nn.Linear(3, 1)(features)


def test_gcs402_backward_alone_without_recording_is_right():
    gradients = []
    for recording in (True, False):
        x = torch.ones(3, requires_grad=True)
        loss = x.pow(3).sum()
        with torch.set_grad_enabled(recording):
            loss.backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_gcs403_the_second_layer_has_no_gradient(example, instead, snapshot, same):
    for names, reached in ((example("GCS403"), False), (instead("GCS403"), True)):
        block = names.Block(4)
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        before = snapshot(block.second)
        block(torch.randn(2, 4)).pow(2).sum().backward()
        optimizer.step()
        assert (block.second.weight.grad is not None) is reached
        assert (not same(snapshot(block.second), before)) is reached


def test_gcs404_the_layers_are_missed(example, instead):
    network = example("GCS404").Network(4, 2)
    assert sorted(network.state_dict()) == ["head.bias", "head.weight"]
    assert len(list(network.parameters())) == 2
    network.to(torch.float64).eval()
    assert network.layers[0].weight.dtype == torch.float32
    assert network.layers[0].training
    assert len(list(instead("GCS404").Network(4, 2).parameters())) == 6

    network = example("GCS404").Network(4, 2)
    network(torch.randn(2, 4)).sum().backward()
    assert network.layers[0].weight.grad is not None


def test_gcs404_nothing_registered_raises(example):
    network = example("GCS404").Network(4, 2)
    del network.head
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        torch.optim.SGD(network.parameters(), lr=0.1)


def test_gcs405_trains_nothing(example, instead, snapshot, same):
    loader = [(torch.randn(4, 8), torch.tensor([0, 1, 2, 1]))] * 2
    for names, moves in ((example("GCS405"), False), (instead("GCS405"), True)):
        model = nn.Linear(8, 3)
        before = snapshot(model)
        names.train(model, loader)
        assert (not same(snapshot(model), before)) is moves
        assert (model.weight.grad is not None) is moves


def test_gcs405_the_three_ways_to_force_it():
    model, x = nn.Linear(3, 1), torch.randn(2, 3)
    with pytest.warns(UserWarning, match="To copy construct from a tensor"):
        forced = torch.tensor(model(x).sum(), requires_grad=True)
    by_method = model(x).sum().detach().requires_grad_()
    by_attribute = model(x).sum().detach()
    by_attribute.requires_grad = True
    for loss in (forced, by_method, by_attribute):
        loss.backward()
        assert loss.grad == 1.0
    assert model.weight.grad is None

    attached = model(x).sum().requires_grad_()
    attached.backward()
    assert model.weight.grad is not None


def test_gcs406_the_pattern_takes_ten_to_nineteen_as_well(example, instead):
    def frozen(names):
        model = nn.Module()
        model.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(12))
        optimizer = names.freeze_first_layers(model)
        indices = [i for i, layer in enumerate(model.layers) if not layer.weight.requires_grad]
        return indices, len(optimizer.param_groups[0]["params"])

    assert frozen(example("GCS406")) == ([0, 1, 10, 11], 12)
    assert frozen(instead("GCS406")) == ([0, 1], 10)


def test_gcs406_a_frozen_parameter_is_skipped_even_by_weight_decay():
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    before = model.weight.clone(), model.bias.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight, before[0])
    assert not torch.equal(model.bias, before[1])


def test_gcs407_is_none_with_a_warning(example, instead):
    encoder, head, x = nn.Linear(3, 3), nn.Linear(3, 1), torch.randn(2, 3)
    with (
        pytest.warns(UserWarning, match="grad attribute of a Tensor that is not a leaf Tensor"),
        pytest.raises(AttributeError, match="'NoneType' object has no attribute 'norm'"),
    ):
        example("GCS407").activation_gradient(encoder, head, x)
    assert instead("GCS407").activation_gradient(encoder, head, x) > 0


def test_gcs408_the_block_gets_no_gradient(example, instead):
    x = torch.randn(2, 4)
    network = example("GCS408").Network(4)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        network(x).sum().backward()
    assert network.stem.weight.grad is None
    assert network.head.weight.grad is not None
    network = instead("GCS408").Network(4)
    network(x).sum().backward()
    assert network.stem.weight.grad is not None


@pytest.mark.filterwarnings("ignore:.*use_reentrant parameter should be passed:UserWarning")
def test_gcs408_the_reentrant_kind_is_the_default_and_alone_it_raises():
    layer = nn.Linear(3, 1)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        loss = checkpoint(layer, torch.randn(2, 3)).sum()
    with pytest.raises(RuntimeError, match=NO_GRAPH):
        loss.backward()
    loss = nn.functional.mse_loss(
        checkpoint(layer, torch.randn(2, 3, requires_grad=True), use_reentrant=True),
        torch.zeros(2, 1),
    )
    loss.backward()
    assert layer.weight.grad is not None


def test_gcs409_moves_a_frozen_layer(example, instead):
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(5)]

    def drift(train):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        train(model, batches[:2])
        after_two = model[0].weight.detach().clone()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        train(model, batches)
        return (model[0].weight.detach() - after_two).abs().max().item()

    assert drift(example("GCS409").train) > 1e-3
    assert drift(instead("GCS409").train) == 0.0


def test_gcs410_refuses_a_loss_of_each_sample(example, instead):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        example("GCS410").train_step(model, optimizer, x, labels)
    before = model.weight.detach().clone()
    instead("GCS410").train_step(model, optimizer, x, labels)
    assert not torch.equal(model.weight, before)


def test_gcs411_the_term_does_not_reach_the_model(example, instead):
    coarse, fine = torch.randn(4, 2, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    assert not example("GCS411").clash(coarse, fine).requires_grad
    loss = fine.logsumexp(1).mean() + example("GCS411").clash(coarse, fine)
    loss.backward()
    assert coarse.grad is None
    instead("GCS411").clash(coarse, fine).backward()
    assert coarse.grad.abs().max() > 0


def test_gcs412_one_layer_runs_several_times(example, instead):
    repeated, each = example("GCS412").Encoder(4, 3), instead("GCS412").Encoder(4, 3)
    assert len(list(repeated.parameters())) == 2
    assert len(list(each.parameters())) == 3 * 2
    assert repeated.layers[0] is repeated.layers[2]


def test_gcs413_a_state_loads_nothing(example, instead):
    checkpoint = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).state_dict()
    resumed = instead("GCS413").resume(checkpoint)
    assert torch.equal(resumed[0].weight, checkpoint["0.weight"])
    untouched = example("GCS413").resume(checkpoint)
    assert not torch.equal(untouched[0].weight, checkpoint["0.weight"])


def test_gcs414_a_part_of_a_copy_stays(example, instead):
    inputs = torch.randn(40, 4, 6)

    def slow_parts(program, steps):
        torch.manual_seed(0)
        model = program.train(inputs[:steps])
        return model.slow_body.weight, model.slow_head.weight

    body, head = slow_parts(example("GCS414"), 0)
    followed, left = slow_parts(example("GCS414"), 40)
    assert torch.equal(head, left)
    assert not torch.equal(body, followed)
    assert not torch.equal(head, slow_parts(instead("GCS414"), 40)[1])


def test_gcs415_what_was_loaded_is_initialized(example, instead):
    overwritten, kept = example("GCS415"), instead("GCS415")
    checkpoint = kept.Model().state_dict()
    assert torch.equal(kept.train([], checkpoint).body.weight, checkpoint["body.weight"])
    assert not torch.equal(overwritten.train([], checkpoint).body.weight, checkpoint["body.weight"])
