"""Loops whose optimizer has the wrong parameters, or whose model is in the wrong mode."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.auditing.loops.bank import buggy, clean, data, mse, net, setup


@buggy("GCS307")
def head_replaced():
    model, optimizer = setup()  # the layer is not in it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # <- here
    model[2] = nn.Linear(8, 1)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS307")
def layer_added_late():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())  # <- here
    model.append(nn.Linear(1, 1))
    for x, y in data():
        model.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS307")
def decoder_left_out():
    model = nn.ModuleDict({"encoder": nn.Linear(4, 8), "decoder": nn.Linear(8, 1)})
    optimizer = torch.optim.SGD(model["encoder"].parameters(), lr=0.01)  # <- here
    for x, y in data():
        optimizer.zero_grad()
        out = model["decoder"](model["encoder"](x))
        nn.functional.mse_loss(out, y).backward()
        optimizer.step()


@buggy("GCS307")
def critic_whose_optimizer_has_the_generators_parameters():
    generator, critic = nn.Linear(3, 4), net()
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(generator.parameters())  # <- here
    for x, _ in data():
        of_critic.zero_grad()
        fake = generator(torch.randn(len(x), 3))
        (critic(fake.detach()).mean() - critic(x).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        critic.requires_grad_(False)
        (-critic(generator(torch.randn(len(x), 3))).mean()).backward()
        critic.requires_grad_(True)
        of_generator.step()


@buggy("GCS307")
def critic_with_a_penalty_that_nobody_trains():
    generator, critic = nn.Linear(3, 4), net()
    optimizer = torch.optim.Adam(generator.parameters())
    for x, _ in data():
        between = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(x).mean() + (slope.norm(2, dim=1) - 1).square().mean()
        loss.backward()  # <- here
        optimizer.zero_grad()
        scores = critic(generator(torch.randn(len(x), 3)))
        torch.autograd.backward(-scores.mean(), inputs=list(generator.parameters()))
        optimizer.step()


@buggy("GCS307")
def bias_left_out_of_the_groups():
    model = net()
    weights = [each for each in model.parameters() if each.dim() > 1]
    optimizer = torch.optim.AdamW(weights)  # <- here
    for x, y in data():
        model.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS308")
def model_built_again():
    model, optimizer = setup()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model = net()  # <- here
    for x, y in data():
        model.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS308")
def state_assigned():
    model = net()
    state = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters())  # <- here
    model.load_state_dict(state, assign=True)
    for x, y in data():
        model.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS308")
def copy_trained_in_place_of_the_model():
    original = net()
    optimizer = torch.optim.SGD(original.parameters(), lr=0.01)  # <- here
    model = copy.deepcopy(original)
    for x, y in data():
        model.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS309")
def generator_first():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.SGD(generator.parameters(), lr=0.01)
    second = torch.optim.Adam(critic.parameters())
    for x, _ in data():
        first.zero_grad()
        second.zero_grad()
        fake = generator(x)
        (-critic(fake).mean()).backward()
        first.step()
        (critic(fake.detach()) - critic(x)).mean().backward()  # <- here
        second.step()


@buggy("GCS309")
def actor_and_critic():
    actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
    first = torch.optim.Adam(actor.parameters())
    second = torch.optim.Adam(critic.parameters())
    for x, y in data():
        first.zero_grad()
        second.zero_grad()
        (-critic(torch.cat([x, actor(x)], 1)).mean()).backward()
        first.step()
        with torch.no_grad():
            action = actor(x)
        nn.functional.mse_loss(critic(torch.cat([x, action], 1)), y).backward()  # <- here
        second.step()


@buggy("GCS309")
def generator_first_zeroed_at_the_end():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.SGD(generator.parameters(), lr=0.01)
    second = torch.optim.SGD(critic.parameters(), lr=0.01)
    for x, _ in data():
        critic(generator(x)).mean().backward()
        first.step()
        critic(generator(x).detach()).mean().backward()
        critic(x).mean().neg().backward()  # <- here
        second.step()
        first.zero_grad()
        second.zero_grad()


@buggy("GCS309")
def critic_steps_after_the_backward_of_the_actor():
    actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
    of_actor = torch.optim.Adam(actor.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    for x, y in data():
        of_critic.zero_grad()
        nn.functional.mse_loss(critic(torch.cat([x, x[:, :2]], 1)), y).backward()
        of_actor.zero_grad()
        action = actor(x)
        value = critic(torch.cat([x, action], 1)).mean()
        (0.1 * action.pow(2).mean() - value).backward()  # <- here
        of_critic.step()
        of_actor.step()


@buggy("GCS309")
def critic_of_two_backwards_steps_after_the_generators():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    for x, _ in data():
        of_critic.zero_grad()
        critic(x).mean().neg().backward()
        critic(generator(x)).mean().backward()  # reaches the generator, which is cleared below
        of_generator.zero_grad()
        critic(generator(x)).mean().neg().backward()  # <- here
        of_generator.step()
        of_critic.step()


@buggy("GCS309")
def both_losses_accumulated_on_one_line():
    networks = [nn.Linear(4, 1), nn.Linear(4, 4)]
    critic, generator = networks
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in networks]
    for number, (x, _) in enumerate(data(16), 1):
        for turn, optimizer in enumerate(optimizers):
            fake = generator(x)
            loss = critic(fake).mean().neg() if turn else critic(fake.detach() - x).mean()
            (loss / 4).backward()  # <- here
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


@clean
def critic_frozen_while_the_generators_loss_is_accumulated():
    networks = [nn.Linear(4, 1), nn.Linear(4, 4)]
    critic, generator = networks
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in networks]
    for number, (x, _) in enumerate(data(16), 1):
        for turn, optimizer in enumerate(optimizers):
            critic.requires_grad_(turn == 0)
            fake = generator(x)
            loss = critic(fake).mean().neg() if turn else critic(fake.detach() - x).mean()
            (loss / 4).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


@clean
def trunk_that_accumulates_for_longer_than_its_head():
    trunk, head = nn.Linear(4, 8), nn.Linear(8, 1)
    of_trunk = torch.optim.SGD(trunk.parameters(), lr=0.01)
    of_head = torch.optim.SGD(head.parameters(), lr=0.01)
    for number, (x, y) in enumerate(data(), 1):
        nn.functional.mse_loss(head(trunk(x)), y).backward()
        of_head.step()
        of_head.zero_grad()
        if number % 2 == 0:
            of_trunk.step()
            of_trunk.zero_grad()


@buggy("GCS309")
def gradients_harvested_by_reference():
    nets = {"critic": nn.Linear(6, 1), "actor": nn.Linear(4, 2)}
    optimizers = {name: torch.optim.Adam(each.parameters()) for name, each in nets.items()}
    for x, y in data():
        critic, actor = nets["critic"], nets["actor"]
        losses = {
            "critic": nn.functional.mse_loss(critic(torch.cat([x, x[:, :2]], 1)), y),
            "actor": -critic(torch.cat([x, actor(x)], 1)).mean(),
        }
        kept = {}
        for name, loss in losses.items():
            optimizers[name].zero_grad()
            loss.backward()  # <- here
            kept.update({each: each.grad for each in nets[name].parameters()})
        for name, optimizer in optimizers.items():
            for each in nets[name].parameters():
                each.grad = kept[each]
            optimizer.step()


@clean
def gradients_harvested_as_copies():
    nets = {"critic": nn.Linear(6, 1), "actor": nn.Linear(4, 2)}
    optimizers = {name: torch.optim.Adam(each.parameters()) for name, each in nets.items()}
    for x, y in data():
        critic, actor = nets["critic"], nets["actor"]
        losses = {
            "critic": nn.functional.mse_loss(critic(torch.cat([x, x[:, :2]], 1)), y),
            "actor": -critic(torch.cat([x, actor(x)], 1)).mean(),
        }
        kept = {}
        for name, loss in losses.items():
            optimizers[name].zero_grad()
            loss.backward()
            kept.update({each: each.grad.clone() for each in nets[name].parameters()})
        for name, optimizer in optimizers.items():
            for each in nets[name].parameters():
                each.grad = kept[each]
            optimizer.step()


@clean
def actors_backward_with_inputs():
    actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
    of_actor = torch.optim.Adam(actor.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    for x, y in data():
        of_critic.zero_grad()
        nn.functional.mse_loss(critic(torch.cat([x, x[:, :2]], 1)), y).backward()
        of_actor.zero_grad()
        loss = -critic(torch.cat([x, actor(x)], 1)).mean()
        loss.backward(inputs=list(actor.parameters()))
        of_critic.step()
        of_actor.step()


@clean
def both_trained_for_both_losses():
    actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
    of_actor = torch.optim.Adam(actor.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    for x, y in data():
        of_critic.zero_grad()
        of_actor.zero_grad()
        nn.functional.mse_loss(critic(torch.cat([x, x[:, :2]], 1)), y).backward()
        critic(torch.cat([x, actor(x)], 1)).mean().backward()
        of_critic.step()
        of_actor.step()


@clean
def encoder_with_a_loss_of_its_own_and_a_head_behind_it():
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 1)
    of_encoder = torch.optim.SGD(encoder.parameters(), lr=0.01)
    of_head = torch.optim.SGD(head.parameters(), lr=0.01)
    for x, y in data():
        of_encoder.zero_grad()
        encoder(x).pow(2).mean().backward()
        of_head.zero_grad()
        nn.functional.mse_loss(head(encoder(x)), y).backward()
        of_encoder.step()
        of_head.step()


@buggy("GCS701")
def validation_in_training_mode():
    model, optimizer = setup(drop=True)
    for _ in range(2):
        model.train()
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in data(2):
                mse(model, x, y)


@buggy("GCS701")
def inference_mode_in_training_mode():
    model, optimizer = setup(norm=True)
    for _ in range(2):
        for x, y in data(4):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        with torch.inference_mode():
            model(torch.randn(6, 4))  # <- here


@buggy("GCS701")
def validated_by_a_decorated_function():
    model, optimizer = setup(drop=True, norm=True)

    @torch.no_grad()
    def validate():
        return [model(x) for x, _ in data(2)]

    for _ in range(2):
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        validate()


@buggy("GCS702")
def eval_for_ever():
    model, optimizer = setup(drop=True)
    for _ in range(3):
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        model.eval()  # <- here
        with torch.no_grad():
            model(torch.randn(6, 4))


@buggy("GCS702")
def train_false_for_ever():
    model, optimizer = setup(norm=True)
    model.train()
    for _ in range(3):
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        model.train(False)  # <- here


@buggy("GCS702")
def two_modules_stuck():
    body, head = net(drop=True)[:3], nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    for _ in range(3):
        for x, y in data(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(head(body(x)), y).backward()
            optimizer.step()
        for module in (body, head):
            module.eval()  # <- here


class _Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher, self.student = net(drop=True, norm=True), net(drop=True, norm=True)
        self.teacher.requires_grad_(False)

    def forward(self, x):
        return nn.functional.mse_loss(self.student(x), self.teacher(x))


@clean
def student_put_back_in_training_mode_without_its_teacher():
    pair = _Pair()
    optimizer = torch.optim.SGD(pair.student.parameters(), lr=0.01)
    pair.teacher.eval()
    for _ in range(3):
        pair.student.train()
        for x, _ in data(3):
            optimizer.zero_grad()
            pair(x).backward()
            optimizer.step()
        pair.eval()
        with torch.no_grad():
            pair(torch.randn(6, 4))


@clean
def frozen_layer_thawed_later():
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)
    for index, (x, y) in enumerate(data(10)):
        if index == 5:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters()})
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@clean
def head_alone_without_freezing():
    model = net()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)
    for x, y in data():
        model.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@clean
def evaluation_mode_but_for_the_head():
    model, optimizer = setup(norm=True)
    for epoch in range(4):
        if epoch:
            model.eval()
            model[-1].train()
        for x, y in data(4):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def low_rank_adapters():
    base = nn.Linear(4, 4).requires_grad_(False)
    down, up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
    optimizer = torch.optim.AdamW([*down.parameters(), *up.parameters()])
    for x, _ in data():
        optimizer.zero_grad()
        (base(x) + up(down(x))).pow(2).mean().backward()
        optimizer.step()


@clean
def part_updated_by_hand():
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.01)
    for x, y in data():
        model.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model[2].parameters():
                parameter.sub_(0.01 * parameter.grad)


@clean
def critic_of_the_generator_stepped_elsewhere():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)

    pair = Pair()
    first = torch.optim.SGD(pair.generator.parameters(), lr=0.01)
    second = torch.optim.SGD(pair.critic.parameters(), lr=0.01)
    for index, (x, _) in enumerate(data(8)):
        first.zero_grad()
        pair.critic(pair.generator(x)).mean().backward()
        first.step()
        if index > 5:
            second.zero_grad()
            pair.critic(x).mean().backward()
            second.step()


@clean
def perceptual_network_in_eval():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.features = net(), nn.Linear(1, 3).eval()

        def forward(self, x):
            return self.features(self.net(x))

    model = WithLoss()
    model.train()
    model.features.eval()
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.01)
    for x, _ in data():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


@clean
def averaged_copy():
    model, optimizer = setup(norm=True)
    average = torch.optim.swa_utils.AveragedModel(model)
    for x, y in data(5):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        average.update_parameters(model)
    torch.optim.swa_utils.update_bn([x for x, _ in data(2)], average)


@clean
def validation_in_eval_mode():
    model, optimizer = setup(drop=True, norm=True)
    for _ in range(3):
        model.train()
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.randn(6, 4))


@clean
def monte_carlo_dropout():
    model, optimizer = setup(drop=True, norm=True)
    for _ in range(3):
        model.train()
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        model.eval()
        model[2].train()
        with torch.no_grad():
            torch.stack([model(torch.randn(6, 4)) for _ in range(3)]).std()


@clean
def statistics_estimated_anew():
    model, optimizer = setup(norm=True)
    for _ in range(2):
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        torch.optim.swa_utils.update_bn([x for x, _ in data(2)], model)


@clean
def teacher_with_every_step():
    model, optimizer = setup(drop=True)
    for x, _ in data():
        with torch.no_grad():
            target = model(x)
        optimizer.zero_grad()
        mse(model, x, target).backward()
        optimizer.step()


@clean
def reentrant_checkpoint():
    model, optimizer = setup(drop=True)
    for x, y in data(10):
        optimizer.zero_grad()
        x.requires_grad_()
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True)
        nn.functional.mse_loss(out, y).backward()
        optimizer.step()


@clean
def batch_norm_frozen_late():
    model, optimizer = setup(norm=True)
    for epoch in range(3):
        model.train()
        if epoch:
            model[2].eval()
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def fine_tuned_in_eval_mode():
    model, optimizer = setup(norm=True, drop=True)
    model.eval()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@clean
def backbone_put_to_rest():
    backbone, head = net(drop=True)[:3], nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.01)
    for epoch in range(3):
        if epoch:
            backbone.eval()
        for x, y in data(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(head(backbone(x)), y).backward()
            optimizer.step()


@clean
def attacks_in_eval_mode():
    model, optimizer = setup(drop=True)
    for x, y in data():
        model.eval()
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(mse(model, x, y), x)
        model.train()
        optimizer.zero_grad()
        mse(model, (x + 0.1 * gradient.sign()).detach(), y).backward()
        optimizer.step()


@clean
def adapter_beside_a_base_left_unfrozen():
    model = nn.ModuleDict({"base": nn.Linear(4, 4), "adapter": nn.Linear(4, 4)})
    optimizer = torch.optim.SGD(model["adapter"].parameters(), lr=0.01)
    for x, _ in data():
        model.zero_grad()
        (model["base"](x) + model["adapter"](x)).pow(2).mean().backward()
        optimizer.step()


@clean
def body_trained_before_the_head():
    model = net(norm=True)
    first = torch.optim.SGD(model[0].parameters(), lr=0.01)
    for x, y in data(6):
        model.zero_grad()
        mse(model, x, y).backward()
        first.step()
    second = torch.optim.SGD([*model[2].parameters(), *model[3].parameters()], lr=0.01)
    for x, y in data(6):
        model.zero_grad()
        mse(model, x, y).backward()
        second.step()


@clean
def pixels_of_an_attack_on_a_model_that_nobody_trains():
    victim = net()
    model, optimizer = setup()
    for x, y in data():
        pixels = x.clone().requires_grad_()
        mse(victim, pixels, y).backward()
        optimizer.zero_grad()
        mse(model, x + 0.1 * pixels.grad.sign(), y).backward()
        optimizer.step()


@clean
def model_that_is_updated_by_hand_beside_an_optimizer():
    by_hand = net()
    model, optimizer = setup()
    for x, y in data():
        mse(by_hand, x, y).backward()
        with torch.no_grad():
            for parameter in by_hand.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@clean
def gradients_of_fresh_copies():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        worker = copy.deepcopy(model)
        mse(worker, x, y).backward()
        for mine, its in zip(model.parameters(), worker.parameters(), strict=True):
            mine.grad = its.grad
        optimizer.step()


@clean
def gradients_of_one_copy_that_is_kept_in_step():
    model, optimizer = setup()
    worker = copy.deepcopy(model)
    for x, y in data():
        worker.load_state_dict(model.state_dict())
        worker.zero_grad()
        mse(worker, x, y).backward()
        optimizer.zero_grad()
        for mine, its in zip(model.parameters(), worker.parameters(), strict=True):
            mine.grad = its.grad.clone()
        optimizer.step()


@clean
def importance_of_an_old_models_weights():
    model, optimizer = setup()
    old = copy.deepcopy(model)
    squares = [torch.zeros_like(each) for each in old.parameters()]
    for x, y in data():
        old.zero_grad()
        mse(old, x, y).backward()
        for square, parameter in zip(squares, old.parameters(), strict=True):
            square.add_(parameter.grad.square())
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@clean
def optimizer_that_is_made_late():
    first, second = net(), net()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.01)
    for x, y in data():
        optimizer.zero_grad()
        mse(first, x, y).backward()
        optimizer.step()
        mse(second, x, y).backward()
    optimizer = torch.optim.SGD(second.parameters(), lr=0.01)
    optimizer.step()


@clean
def two_optimizers_of_the_same_parameters_in_turn():
    model, optimizer = setup()
    other = torch.optim.Adam(model.parameters())
    for step, (x, y) in enumerate(data(12)):
        current = other if step % 3 else optimizer
        current.zero_grad()
        mse(model, x, y).backward()
        current.step()


@clean
def two_losses_with_an_optimizer_each_for_the_same_parameters():
    model, first = setup()
    second = torch.optim.Adam(model.parameters())
    for x, y in data(12):
        first.zero_grad()
        mse(model, x, y).backward()
        first.step()
        second.zero_grad()
        mse(model, -x, y).backward()
        second.step()


def there_and_back(optimizer, there, back, judge=None):
    for x, _ in data():
        optimizer.zero_grad()
        code = there(x)
        loss = nn.functional.mse_loss(back(code), x)
        if judge is not None:
            loss = loss + judge(code).square().mean()
        loss.backward()
        optimizer.step()


@buggy("GCS307")
def group_from_an_iterator_that_is_used_up():
    there, back = nn.Linear(4, 3), nn.Linear(3, 4)
    rest = back.parameters()
    assert sum(each.numel() for each in rest)
    groups = [{"params": there.parameters()}, {"params": rest}]
    optimizer = torch.optim.SGD(groups, lr=0.01)  # <- here
    there_and_back(optimizer, there, back)


@clean
def group_that_is_empty_as_nothing_belongs_to_it():
    there, back = nn.Linear(4, 3), nn.Linear(3, 4)
    weights = [*there.parameters(), *back.parameters()]
    judge = nn.Linear(3, 1).eval()
    groups = [{"params": weights}, {"params": [], "weight_decay": 0.0}]
    there_and_back(torch.optim.SGD(groups, lr=0.01), there, back, judge)


def made_again_for_each_epoch(parameters_of):
    """Train two layers with an optimizer that is made anew, with groups of their own."""
    there, back = nn.Linear(4, 3), nn.Linear(3, 4)
    rest = parameters_of(back)
    for _ in range(3):
        groups = [{"params": there.parameters()}, {"params": rest, "lr": 0.1}]
        optimizer = torch.optim.Adam(groups, lr=0.01)
        for x, _ in data():
            for layer in (there, back):
                layer.zero_grad()
            nn.functional.mse_loss(back(there(x)), x).backward()
            optimizer.step()  # <- here


@buggy("GCS307")
def group_that_is_used_up_when_its_optimizer_is_made_again():
    made_again_for_each_epoch(lambda layer: filter(torch.is_tensor, layer.parameters()))


@clean
def group_that_is_a_list_when_its_optimizer_is_made_again():
    made_again_for_each_epoch(lambda layer: list(layer.parameters()))


class _Margin(nn.Module):
    """A head with a centre for each class, on the sphere."""

    def __init__(self, width=8, classes=3):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(classes, width))

    def forward(self, x):
        return 10 * nn.functional.linear(
            nn.functional.normalize(x), nn.functional.normalize(self.centres)
        )


def _classify(model, optimizer):
    for _ in range(6):
        optimizer.zero_grad()
        scores = model(torch.randn(5, 4))
        nn.functional.cross_entropy(scores, torch.randint(3, (5,))).backward()
        optimizer.step()


@buggy("GCS307")
def centres_on_a_sphere_that_nobody_owns():
    body, margin = nn.Linear(4, 8), _Margin()
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)  # <- here
    _classify(lambda x: margin(body(x)), optimizer)


@clean
def centres_on_a_sphere_that_are_trained():
    body, margin = nn.Linear(4, 8), _Margin()
    optimizer = torch.optim.SGD([*body.parameters(), *margin.parameters()], lr=0.1)
    _classify(lambda x: margin(body(x)), optimizer)


@clean
def centres_that_are_fine_tuned_over_one_layer():
    body, margin = nn.Linear(4, 8), _Margin()
    optimizer = torch.optim.SGD(margin.parameters(), lr=0.1)
    _classify(lambda x: margin(body(x)), optimizer)


@clean
def head_that_is_fine_tuned_over_one_layer():
    body, head = nn.Linear(4, 8), nn.Linear(8, 3)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    _classify(lambda x: head(body(x).tanh()), optimizer)
