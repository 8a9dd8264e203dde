"""Loops that clip in the wrong place."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.auditing.loops.bank import buggy, clean, cpu_scaler, data, mse, net, setup


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
def clip_an_iterator_that_the_first_clipping_uses_up():
    model, optimizer = setup()
    parameters = model.parameters()
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


@buggy("GCS304")
def clip_value_without_a_gradient():
    model, optimizer = setup()
    for x, y in data():
        optimizer.zero_grad()
        clip_grad_value_(model.parameters(), 1.0)  # <- here
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS304")
def clip_another_model():
    model, optimizer = setup()
    other = net()
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        clip_grad_norm_(other.parameters(), 1.0)  # <- here
        optimizer.step()


def two_networks():
    generator, critic = net(), torch.nn.Linear(1, 1)
    return generator, critic, [torch.optim.Adam(m.parameters()) for m in (generator, critic)]


def update_critic(critic, optimizer, real, fake):
    optimizer.zero_grad()
    (critic(fake.detach()).mean() - critic(real).mean()).backward()
    clip_grad_norm_(critic.parameters(), 1.0)
    optimizer.step()


@buggy("GCS304")
def generator_update_clips_the_critic():
    generator, critic, (first, second) = two_networks()
    for x, y in data():
        update_critic(critic, second, y, generator(x))
        first.zero_grad()
        (-critic(generator(x)).mean()).backward()
        clip_grad_norm_(critic.parameters(), 1.0)  # <- here
        first.step()


@buggy("GCS304")
def actor_update_clips_the_values_by_value():
    actor, values = net(), torch.nn.Linear(5, 1)
    first = torch.optim.SGD(actor.parameters(), lr=0.01)
    second = torch.optim.SGD(values.parameters(), lr=0.01)
    for x, y in data():
        first.zero_grad()
        (-values(torch.cat([x, actor(x)], 1)).mean()).backward()
        clip_grad_value_(values.parameters(), 0.5)  # <- here
        first.step()
        second.zero_grad()
        mse(values, torch.cat([x, y], 1), y).backward()
        clip_grad_value_(values.parameters(), 0.5)
        second.step()


@buggy("GCS304")
def prompt_update_clips_the_head():
    prompt, head = torch.nn.Parameter(torch.randn(6, 4)), net()
    tuner = torch.optim.AdamW([prompt], lr=0.01)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01)
    for step, (x, y) in enumerate(data(12)):
        optimizer.zero_grad()
        tuner.zero_grad()
        mse(head, x + prompt, y).backward()
        clip_grad_norm_(head.parameters(), 1.0)  # <- here
        tuner.step()
        if step % 4 == 3:
            optimizer.zero_grad()
            mse(head, x, y).backward()
            optimizer.step()


@clean
def both_networks_clipped_in_each_update():
    generator, critic, (first, second) = two_networks()
    for x, y in data():
        update_critic(critic, second, y, generator(x))
        first.zero_grad()
        (-critic(generator(x)).mean()).backward()
        clip_grad_norm_([*generator.parameters(), *critic.parameters()], 1.0)
        first.step()


@clean
def one_backward_for_two_optimizers_of_which_one_is_clipped():
    generator, critic, optimizers = two_networks()
    for x, _ in data():
        for each in optimizers:
            each.zero_grad()
        critic(generator(x)).square().mean().backward()
        clip_grad_norm_(critic.parameters(), 1.0)
        for each in optimizers:
            each.step()


@clean
def norm_of_the_critic_measured_in_the_generator_update():
    generator, critic, (first, second) = two_networks()
    for x, y in data():
        update_critic(critic, second, y, generator(x))
        first.zero_grad()
        (-critic(generator(x)).mean()).backward()
        clip_grad_norm_(critic.parameters(), float("inf"))
        first.step()


def critic_and_actor(*, clip_in_actor_update):
    """Update a critic, and in every other turn an actor, whose loss does not reach the critic."""
    critic, critic_optimizer = setup()
    actor, actor_optimizer = setup()
    for number, (x, y) in enumerate(data(10)):
        critic_optimizer.zero_grad()
        mse(critic, x, y).backward()
        clip_grad_norm_(critic.parameters(), 1.0)
        critic_optimizer.step()
        if number % 2:
            with torch.no_grad():
                advantage = y - critic(x)
            actor_optimizer.zero_grad()
            (actor(x) * advantage).mean().backward()
            clip_in_actor_update(actor, critic)
            actor_optimizer.step()


@buggy("GCS304")
def actor_update_clips_what_the_critic_has_used():
    def clip(_actor, critic):
        clip_grad_norm_(critic.parameters(), 1.0)  # <- here

    critic_and_actor(clip_in_actor_update=clip)


@clean
def actor_update_clips_both():
    def clip(actor, critic):
        clip_grad_norm_([*actor.parameters(), *critic.parameters()], 1.0)

    critic_and_actor(clip_in_actor_update=clip)


@clean
def actor_update_measures_the_critic():
    def clip(actor, critic):
        clip_grad_norm_(critic.parameters(), float("inf"))
        clip_grad_norm_(actor.parameters(), 1.0)

    critic_and_actor(clip_in_actor_update=clip)
