"""Loops that clear and step in the wrong order, or seem to."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

from tests.auditing.loops.bank import buggy, clean, data, mse, net, setup


@buggy("GCS302")
def zero_between():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        optimizer.zero_grad()  # <- here
        optimizer.step()


@buggy("GCS302")
def zero_between_in_place_with_adam():
    model, optimizer = setup(torch.optim.Adam)
    for x, y in data():
        mse(model, x, y).backward()
        optimizer.zero_grad(set_to_none=False)  # <- here
        optimizer.step()


@buggy("GCS302")
def zero_between_by_the_model():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        model.zero_grad()  # <- here
        optimizer.step()


@buggy("GCS302")
def zero_doubled():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.zero_grad()  # <- here
        optimizer.step()


@buggy("GCS302")
def zero_after_clipping():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.zero_grad()  # <- here
        optimizer.step()


@buggy("GCS302")
def model_zeroed_between_two_optimizers():
    model = net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.01)
    second = torch.optim.SGD(model[2].parameters(), lr=0.01)
    for x, y in data():
        mse(model, x, y).backward()
        first.step()
        model.zero_grad()  # <- here
        second.step()


@buggy("GCS302")
def zero_by_another_optimizer_of_the_same_parameters():
    model, optimizer = setup()
    other = torch.optim.Adam(model.parameters())
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.zero_grad()  # <- here
        other.step()


@buggy("GCS302")
def zero_on_each_micro_batch():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(16)):
        optimizer.zero_grad()  # <- here
        (mse(model, x, y) / 4).backward()
        if index % 4 == 3:
            optimizer.step()


@buggy("GCS302")
def zero_on_each_micro_batch_of_two_losses():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(16)):
        optimizer.zero_grad()  # <- here
        (mse(model, x, y) / 4).backward()
        model(x).abs().mean().backward()
        if index % 4 == 3:
            optimizer.step()


@buggy("GCS302")
def zero_after_each_micro_batch_but_the_last():
    model, optimizer = setup(torch.optim.AdamW)
    for _ in range(4):
        for x, y in data(3):
            model.zero_grad()  # <- here
            mse(model, x, y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@buggy("GCS302")
def zero_late_in_the_epoch_only():
    model, optimizer = setup()
    for epoch in range(2):
        for x, y in data(5):
            if not epoch:
                optimizer.zero_grad()
            mse(model, x, y).backward()
            if epoch:
                optimizer.zero_grad()  # <- here
            optimizer.step()


@buggy("GCS303")
def no_backward():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y)
        optimizer.step()  # <- here


@buggy("GCS303")
def no_backward_and_no_zero():
    model, optimizer = setup(torch.optim.Adam)
    for x, y in data():
        mse(model, x, y)
        optimizer.step()  # <- here


@buggy("GCS303")
def no_backward_and_zeros_left():
    model, optimizer = setup()
    mse(model, torch.randn(3, 4), torch.randn(3, 1)).backward()
    optimizer.step()
    for x, y in data():
        optimizer.zero_grad(set_to_none=False)
        mse(model, x, y)
        optimizer.step()  # <- here


@buggy("GCS303")
def step_before_backward():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        loss = mse(model, x, y)
        optimizer.step()  # <- here
        loss.backward()


@buggy("GCS303")
def step_before_backward_with_adam():
    model, optimizer = setup(torch.optim.Adam)
    for x, y in data():
        loss = mse(model, x, y)
        model.zero_grad()
        optimizer.step()  # <- here
        loss.backward()


@buggy("GCS303")
def step_doubled():
    model, optimizer = setup(torch.optim.Adam)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        optimizer.step()  # <- here


@buggy("GCS303")
def backward_lost_after_some_epochs():
    model, optimizer = setup(torch.optim.Adam)
    for index, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = mse(model, x, y)
        if index < 3:
            loss.backward()
        optimizer.step()  # <- here


@buggy("GCS303")
def backward_lost_zeros_left():
    model, optimizer = setup(torch.optim.Adam)
    for index, (x, y) in enumerate(data()):
        optimizer.zero_grad(set_to_none=False)
        loss = mse(model, x, y)
        if index < 3:
            loss.backward()
        optimizer.step()  # <- here


@buggy("GCS303")
def closure_without_backward():
    model, optimizer = setup()
    for x, y in data():

        def closure(x=x, y=y):
            return mse(model, x, y)

        optimizer.step(closure)  # <- here


@buggy("GCS303")
def old_gradients_for_ever():
    model, optimizer = setup()
    mse(model, torch.randn(3, 4), torch.randn(3, 1)).backward()
    for x, y in data():
        mse(model, x, y)
        optimizer.step()  # <- here


@clean
def plain():
    model, optimizer = setup(torch.optim.Adam)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@clean
def zeroed_after_the_step():
    model, optimizer = setup(torch.optim.AdamW)
    for x, y in data():
        mse(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@clean
def zeros_put_in_place_of_a_backward():
    model, optimizer = setup(torch.optim.Adam)
    for _ in data():
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()


@clean
def gradients_set_to_none_by_hand():
    model, optimizer = setup()
    for x, y in data():
        for parameter in model.parameters():
            parameter.grad = None
        mse(model, x, y).backward()
        clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()


@clean
def turn_begins_with_step():
    model, optimizer = setup()
    for x, y in data():
        optimizer.step()
        optimizer.zero_grad()
        mse(model, x, y).backward()
        clip_grad_norm_(model.parameters(), 1.0)


@clean
def accumulation_with_clipping():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(11)):
        (mse(model, x, y) / 3).backward()
        if index % 3 == 2:
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


@clean
def norm_logged_on_each_micro_batch():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(9)):
        (mse(model, x, y) / 3).backward()
        clip_grad_norm_(model.parameters(), math.inf)
        if index % 3 == 2:
            optimizer.step()
            clip_grad_norm_(model.parameters(), math.inf)
            optimizer.zero_grad()


@clean
def bad_batches_left_out():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(12)):
        optimizer.zero_grad()
        loss = mse(model, x, y)
        loss.backward()
        if index % 5 == 1:
            continue
        optimizer.step()


@clean
def bad_batches_cleared_and_stepped():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(12)):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        if index % 5 == 1:
            optimizer.zero_grad()
        optimizer.step()


@clean
def gan():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.Adam(critic.parameters())
    for index, (x, _) in enumerate(data()):
        second.zero_grad()
        critic(x).mean().backward()
        (-critic(generator(x).detach()).mean()).backward()
        clip_grad_norm_(critic.parameters(), 1.0)
        second.step()
        if index % 2:
            first.zero_grad()
            critic(generator(x)).mean().backward()
            first.step()


@clean
def gan_generator_first():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.Adam(critic.parameters())
    for x, _ in data():
        fake = generator(x)
        first.zero_grad()
        (-critic(fake).mean()).backward()
        first.step()
        second.zero_grad()
        (critic(fake.detach()) - critic(x)).mean().backward()
        second.step()


@clean
def trunk_that_sums_two_tasks():
    trunk, heads = nn.Linear(4, 4), [nn.Linear(4, 1), nn.Linear(4, 1)]
    optimizer = torch.optim.SGD(trunk.parameters(), lr=0.01)
    others = [torch.optim.SGD(head.parameters(), lr=0.01) for head in heads]
    for x, y in data():
        optimizer.zero_grad()
        others[0].zero_grad()
        others[1].zero_grad()
        nn.functional.mse_loss(heads[0](trunk(x)), y).backward()
        others[0].step()
        nn.functional.l1_loss(heads[1](trunk(x)), y).backward()
        others[1].step()
        optimizer.step()


@clean
def slow_and_fast_optimizers():
    model = net()
    fast = torch.optim.SGD(model[2].parameters(), lr=0.01)
    slow = torch.optim.SGD(model[0].parameters(), lr=0.01)
    for index, (x, y) in enumerate(data(12)):
        fast.zero_grad()
        mse(model, x, y).backward()
        fast.step()
        if index % 4 == 3:
            slow.step()
            slow.zero_grad()


@clean
def every_task_steps_all():
    heads = [nn.Linear(4, 1) for _ in range(3)]
    optimizers = [torch.optim.SGD(head.parameters(), lr=0.01) for head in heads]
    for index, (x, y) in enumerate(data(12)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        mse(heads[index % 3], x, y).backward()
        for head, optimizer in zip(heads, optimizers, strict=True):
            clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()


@clean
def lbfgs():
    model, optimizer = setup(torch.optim.LBFGS)
    for x, y in data(4):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse(model, x, y)
            loss.backward()
            clip_grad_norm_(model.parameters(), 10.0)
            return loss

        optimizer.step(closure)


@clean
def closure_with_sgd():
    model, optimizer = setup()
    for x, y in data():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)


@clean
def sam():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        with torch.no_grad():
            moves = [0.05 * each.grad / (each.grad.norm() + 1e-12) for each in model.parameters()]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        mse(model, x, y).backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


@clean
def sam_with_one_helper():
    model, optimizer = setup()

    def differentiate(x, y):
        optimizer.zero_grad()
        mse(model, x, y).backward()

    for x, y in data():
        differentiate(x, y)
        with torch.no_grad():
            moves = [0.05 * each.grad for each in model.parameters()]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        differentiate(x, y)
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()


@clean
def gradient_surgery():
    model, optimizer = setup()
    for x, y in data():
        kept = []
        for task in (0.5, 2.0):
            optimizer.zero_grad()
            (task * mse(model, x, y)).backward()
            kept.append([each.grad.clone() for each in model.parameters()])
        optimizer.zero_grad()
        for parameter, *gradients in zip(model.parameters(), *kept, strict=True):
            parameter.grad = sum(gradients)
        optimizer.step()


@clean
def gradient_surgery_in_place():
    model, optimizer = setup()
    for x, y in data():
        kept = []
        for task in (0.5, 2.0):
            optimizer.zero_grad()
            (task * mse(model, x, y)).backward()
            kept.append([each.grad.clone() for each in model.parameters()])
        for parameter, *gradients in zip(model.parameters(), *kept, strict=True):
            parameter.grad.copy_(sum(gradients))
        optimizer.step()


@clean
def attack_before_each_step():
    model, optimizer = setup()
    for x, y in data():
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(2):
            model.zero_grad()
            mse(model, x + delta, y).backward()
            delta.data.add_(0.1 * delta.grad.sign())
            delta.grad = None
        optimizer.zero_grad()
        mse(model, x + delta.detach(), y).backward()
        optimizer.step()


@clean
def evolution():
    model, optimizer = setup()
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


@clean
def evolution_in_place():
    model, optimizer = setup()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad.data.copy_(torch.randn_like(parameter))
        optimizer.step()


@clean
def optimizer_without_gradients():
    class Wander(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, _closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(0.01 * torch.randn_like(parameter))

    model = net()
    optimizer = Wander(model.parameters(), {})
    for x, y in data():
        with torch.no_grad():
            mse(model, x, y)
        optimizer.step()


@clean
def one_empty_step_to_quieten_a_scheduler():
    model, optimizer = setup()
    optimizer.zero_grad()
    optimizer.step()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@clean
def steps_in_hooks():
    model = net()
    optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in model.parameters()}

    def step(parameter):
        clip_grad_norm_([parameter], 1.0)
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for x, y in data():
        mse(model, x, y).backward()


@clean
def several_updates_for_each_rollout():
    policy, optimizer = setup()
    for _ in range(3):
        policy.eval()
        with torch.no_grad():
            batch = list(data(3))
            for x, _ in batch:
                policy(x)
        policy.train()
        for _ in range(2):
            for x, y in batch:
                optimizer.zero_grad()
                mse(policy, x, y).backward()
                clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()


@clean
def resumed():
    model, optimizer = setup(torch.optim.Adam)
    scheduler = lr_scheduler.StepLR(optimizer, 3)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    scheduler.load_state_dict(state[2])
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        scheduler.step()


@clean
def pairs_of_optimizers_and_losses():
    first, of_first = setup()
    second, of_second = setup()
    for x, y in data(10):
        losses = (mse(second, x, y) + 0.1 * mse(first, x, second(x)), mse(first, x, y))
        for optimizer, loss in zip((of_second, of_first), losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@clean
def critic_cleared_after_each_of_two_actor_losses():
    actor, of_actor = setup()
    critic = nn.Linear(5, 1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)

    def update(optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        of_critic.zero_grad()
        return optimizer

    for x, y in data(10):
        for _ in range(2):
            update(of_actor, critic(torch.cat([x, actor(x)], 1)).mean().neg()).step()
        of_critic.zero_grad()
        nn.functional.mse_loss(critic(torch.cat([x, y], 1)), y).backward()
        of_critic.step()


class Propagated(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 4))
        self.register_buffer("neighbours", torch.rand(6, 6).softmax(1))

    def forward(self):
        return torch.stack([self.table, self.neighbours @ self.table]).mean(0)


def _scores(rows, number):
    return nn.functional.logsigmoid(rows[number % 6] @ rows[(number + 1) % 6])


@buggy("GCS109")
def table_propagated_once_an_epoch():
    model = Propagated()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        rows = model()
        for number in range(6):
            optimizer.zero_grad()
            loss = -_scores(rows, number) + model.table.square().mean()
            loss.backward(retain_graph=True)  # <- here
            optimizer.step()


@clean
def table_propagated_for_each_step():
    model = Propagated()
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(12):
        optimizer.zero_grad()
        (-_scores(model(), number)).backward()
        optimizer.step()


@clean
def table_propagated_once_for_all_losses_of_a_step():
    model = Propagated()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        rows = model()
        for number in range(6):
            (-_scores(rows, number)).backward(retain_graph=number < 5)
        optimizer.step()


@clean
def table_that_is_not_trained():
    model, head = Propagated(), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    rows = model()
    for _ in range(6):
        optimizer.zero_grad()
        model.zero_grad()
        (head(rows.detach()).mean() + rows.mean()).backward(retain_graph=True)
        optimizer.step()
