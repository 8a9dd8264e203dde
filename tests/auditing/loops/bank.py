"""Loops with one mistake each, and loops that only look like it; all small enough to run at once.

``BUGGY`` maps a name to a code and a loop; the line to be named ends with ``# <- here``. ``CLEAN``
are correct: nothing is to be said of them.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

BUGGY = {}
CLEAN = {}


def buggy(code):
    def register(loop):
        BUGGY[loop.__name__] = (code, loop)
        return loop

    return register


def clean(loop):
    CLEAN[loop.__name__] = loop
    return loop


def net(*, drop=False, norm=False):
    layers = [nn.Linear(4, 8), nn.Tanh()]
    if drop:
        layers.append(nn.Dropout(0.5))
    if norm:
        layers.append(nn.BatchNorm1d(8))
    return nn.Sequential(*layers, nn.Linear(8, 1))


def setup(kind=torch.optim.SGD, lr=0.01, **options):
    model = net(**options)
    return model, kind(model.parameters(), lr=lr)


def data(count=8):
    for _ in range(count):
        yield torch.randn(6, 4), torch.randn(6, 1)


def mse(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def cpu_scaler(**options):
    return torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, **options})


# --- zero_grad between backward and step


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


# --- steps without backward


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


# --- clipping


@buggy("GCS304")
def clip_after_step():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_value_after_step():
    model, optimizer = setup(torch.optim.Adam)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()
        clip_grad_value_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_before_backward():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        loss = mse(model, x, y)
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        loss.backward()
        optimizer.step()


@buggy("GCS304")
def clip_zeros_before_backward():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad(set_to_none=False)
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS304")
def clip_at_the_end_after_zero():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_at_the_end_by_model():
    model, optimizer = setup()
    for x, y in data():
        mse(model, x, y).backward()
        optimizer.step()
        model.zero_grad()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here


@buggy("GCS304")
def clip_an_exhausted_iterator():
    model = net()
    parameters = filter(lambda each: each.requires_grad, model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        clip_grad_norm_(parameters, 1.0)  # <- here
        optimizer.step()


@buggy("GCS304")
def clip_each_micro_batch():
    model, optimizer = setup()
    for index, (x, y) in enumerate(data(12)):
        (mse(model, x, y) / 4).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@buggy("GCS304")
def clip_after_conditional_step():
    model, optimizer = setup()
    for _ in range(4):
        for x, y in data(2):
            (mse(model, x, y) / 2).backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        optimizer.zero_grad()


@buggy("GCS304")
def clip_scaled_after_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here


# --- clipping scaled gradients


@buggy("GCS305")
def clip_without_unscale():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS305")
def clip_value_without_unscale():
    model, optimizer = setup(torch.optim.Adam)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_value_(model.parameters(), 1.0)  # <- here
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS305")
def clip_then_unscale():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS305")
def clip_scaled_accumulation():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for index, (x, y) in enumerate(data(8)):
        (scaler.scale(mse(model, x, y)) / 2).backward()
        if index % 2:
            clip_grad_norm_(model.parameters(), 1.0)  # <- here
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@buggy("GCS305")
def clip_with_the_wrong_optimizer_unscaled():
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    second = torch.optim.SGD(other.parameters(), lr=0.01)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        second.zero_grad()
        scaler.scale(mse(model, x, y) + mse(other, x, y)).backward()
        scaler.unscale_(second)
        clip_grad_norm_(model.parameters(), 1.0)  # <- here
        scaler.step(optimizer)
        scaler.step(second)
        scaler.update()


# --- the scaler's calls


@buggy("GCS310")
def optimizer_steps_on_scaled_gradients():
    model, optimizer = setup(lr=1e-6)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        optimizer.step()  # <- here


@buggy("GCS310")
def scaled_loss_unused():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        loss = mse(model, x, y)
        scaler.scale(loss)
        loss.backward()
        scaler.step(optimizer)  # <- here
        scaler.update()


@buggy("GCS310")
def unscale_then_own_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.unscale_(optimizer)
        optimizer.step()  # <- here
        scaler.update()


@buggy("GCS310")
def no_update():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.step(optimizer)  # <- here


@buggy("GCS310")
def no_scale():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        scaler.step(optimizer)  # <- here
        scaler.update()


@buggy("GCS310")
def unscale_doubled():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.unscale_(optimizer)
        scaler.unscale_(optimizer)  # <- here
        scaler.step(optimizer)
        scaler.update()


@buggy("GCS310")
def unscale_after_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.unscale_(optimizer)  # <- here
        scaler.update()


@buggy("GCS310")
def update_before_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.update()  # <- here
        scaler.step(optimizer)


@buggy("GCS310")
def one_of_two_optimizers_steps_itself():
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    second = torch.optim.SGD(other.parameters(), lr=1e-6)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        second.zero_grad()
        scaler.scale(mse(model, x, y) + mse(other, x, y)).backward()
        scaler.step(optimizer)
        second.step()  # <- here
        scaler.update()


@buggy("GCS310")
def unscale_on_each_micro_batch():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for index, (x, y) in enumerate(data(8)):
        scaler.scale(mse(model, x, y)).backward()
        if index % 2 == 0:
            scaler.unscale_(optimizer)
        else:
            scaler.step(optimizer)  # <- here
            scaler.update()
            optimizer.zero_grad()


# --- schedulers


@buggy("GCS306")
def scheduler_first():
    model, optimizer = setup()
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        scheduler.step()  # <- here
        optimizer.step()


@buggy("GCS306")
def scheduler_at_the_top_of_each_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(3):
        scheduler.step()  # <- here
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@buggy("GCS306")
def one_cycle_first():
    model, optimizer = setup()
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
    for x, y in data(8):
        scheduler.step()  # <- here
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS306")
def warm_up_chain_first():
    model, optimizer = setup()
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    scheduler = lr_scheduler.ChainedScheduler([warm, lr_scheduler.ExponentialLR(optimizer, 0.9)])
    for x, y in data():
        scheduler.step()  # <- here
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS306")
def cosine_before_scaler_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scheduler.step()  # <- here
        scaler.step(optimizer)
        scaler.update()


# --- owners


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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # <- here
    model = net()
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
        (critic(fake.detach()) - critic(x)).mean().backward()
        second.step()  # <- here


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
        nn.functional.mse_loss(critic(torch.cat([x, action], 1)), y).backward()
        second.step()  # <- here


@buggy("GCS309")
def generator_first_zeroed_at_the_end():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.SGD(generator.parameters(), lr=0.01)
    second = torch.optim.SGD(critic.parameters(), lr=0.01)
    for x, _ in data():
        critic(generator(x)).mean().backward()
        first.step()
        critic(generator(x).detach()).mean().backward()
        critic(x).mean().neg().backward()
        second.step()  # <- here
        first.zero_grad()
        second.zero_grad()


# --- modes


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


# --- correct


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
def amp():
    model, optimizer = setup(torch.optim.AdamW)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def amp_first_steps_overflow():
    model, optimizer = setup()
    scaler = cpu_scaler()
    scheduler = lr_scheduler.LinearLR(optimizer, 0.5)
    for index, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = mse(model, x, y) * (math.inf if index < 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if index > 2:
            scheduler.step()


@clean
def amp_switched_off():
    model, optimizer = setup()
    scaler = cpu_scaler(enabled=False)
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def amp_limit_scaled_by_hand():
    model, optimizer = setup()
    scaler = cpu_scaler(init_scale=65536.0)
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        clip_grad_norm_(model.parameters(), scaler.get_scale() * 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def amp_accumulation():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for index, (x, y) in enumerate(data(9)):
        (scaler.scale(mse(model, x, y)) / 3).backward()
        if index % 3 == 2:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@clean
def amp_sum_of_two_scaled_losses():
    model, optimizer = setup()
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        total = scaler.scale(mse(model, x, y)) + scaler.scale(model(x).pow(2).mean())
        total.backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def amp_one_optimizer_without():
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    second = torch.optim.SGD(other.parameters(), lr=0.01)
    scaler = cpu_scaler()
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        second.zero_grad()
        mse(other, x, y).backward()
        clip_grad_norm_(other.parameters(), 1.0)
        second.step()


@clean
def schedulers_after():
    model, optimizer = setup()
    batches = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
    for _ in range(2):
        for x, y in data(4):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
            batches.step()


@clean
def plateau_with_a_first_validation():
    model, optimizer = setup()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
    for _ in range(3):
        with torch.no_grad():
            loss = mse(model, *next(data()))
        scheduler.step(loss)
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def scheduler_not_in_the_first_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(3):
        if epoch:
            scheduler.step()
        for x, y in data(2):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def scheduler_given_the_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)
    for epoch in range(3):
        for index, (x, y) in enumerate(data(2)):
            scheduler.step(epoch + index / 2)
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


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
