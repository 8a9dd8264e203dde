"""Loops of agents, sequences and learners of learners, most of them correct."""

from __future__ import annotations

import copy
import random
from collections import deque

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn
from torch.distributions import Categorical, Normal
from torch.func import functional_call, grad, vmap

from tests.auditing.loops.bank import buggy, clean, data, net


def mlp(inside, outside):
    return nn.Sequential(nn.Linear(inside, 8), nn.Tanh(), nn.Linear(8, outside))


def soft_update(target, source, rate=0.05):
    with torch.no_grad():
        for theirs, mine in zip(target.parameters(), source.parameters(), strict=True):
            theirs.data.mul_(1 - rate).add_(rate * mine.data)


@clean
def deep_q_learning():
    online, target = mlp(4, 2), mlp(4, 2)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters())
    memory = deque(maxlen=50)
    state = torch.randn(4)
    for step in range(30):
        with torch.no_grad():
            action = int(online(state).argmax()) if random.random() > 0.3 else step % 2
        after = torch.randn(4)
        memory.append((state, action, random.random(), after))
        state = after
        if len(memory) < 10:
            continue
        states, actions, rewards, afters = zip(*random.sample(memory, 8), strict=True)
        values = online(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])
        with torch.no_grad():
            best = target(torch.stack(afters)).max(1).values
        loss = F.smooth_l1_loss(values[:, 0], torch.tensor(rewards) + 0.99 * best)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(online.parameters(), 100)
        optimizer.step()
        if step % 7 == 0:
            target.load_state_dict(online.state_dict())


@clean
def deterministic_policy_gradient():
    actor, critic = mlp(4, 1), mlp(5, 1)
    slow_actor, slow_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for _ in range(8):
        s, a, r, s2 = torch.randn(6, 4), torch.randn(6, 1), torch.randn(6, 1), torch.randn(6, 4)
        goal = slow_critic(torch.cat([s2, slow_actor(s2)], 1))
        goal = r + (0.99 * goal).detach()
        critic_loss = F.mse_loss(critic(torch.cat([s, a], 1)), goal)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        actor_loss = -critic(torch.cat([s, actor(s)], 1)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        soft_update(slow_actor, actor)
        soft_update(slow_critic, critic)


@clean
def twin_critics_with_a_delayed_actor():
    actor, one, two = mlp(4, 1), mlp(5, 1), mlp(5, 1)
    slow = [copy.deepcopy(each) for each in (actor, one, two)]
    actor_optimizer = torch.optim.Adam(actor.parameters())
    critic_optimizer = torch.optim.Adam([*one.parameters(), *two.parameters()])
    for step in range(12):
        s, a, r, s2 = torch.randn(6, 4), torch.randn(6, 1), torch.randn(6, 1), torch.randn(6, 4)
        with torch.no_grad():
            a2 = (slow[0](s2) + 0.1 * torch.randn(6, 1)).clamp(-1, 1)
            both = torch.cat([s2, a2], 1)
            goal = r + 0.99 * torch.min(slow[1](both), slow[2](both))
        pair = torch.cat([s, a], 1)
        critic_optimizer.zero_grad()
        (F.mse_loss(one(pair), goal) + F.mse_loss(two(pair), goal)).backward()
        critic_optimizer.step()
        if step % 2:
            actor_optimizer.zero_grad()
            (-one(torch.cat([s, actor(s)], 1)).mean()).backward()
            actor_optimizer.step()
            for theirs, mine in zip(slow, (actor, one, two), strict=True):
                soft_update(theirs, mine)


@clean
def soft_actor_critic_with_a_learned_temperature():
    actor, critic = mlp(4, 2), mlp(5, 1)
    slow = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizers = [
        torch.optim.Adam(parameters, lr=1e-3)
        for parameters in (actor.parameters(), critic.parameters(), [log_alpha])
    ]

    def act(s):
        mean, spread = actor(s).chunk(2, 1)
        normal = Normal(mean, spread.clamp(-3, 1).exp())
        raw = normal.rsample()
        action = raw.tanh()
        return action, normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)

    for _ in range(8):
        s, r, s2 = torch.randn(6, 4), torch.randn(6, 1), torch.randn(6, 4)
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            a2, chance = act(s2)
            goal = r + 0.99 * (slow(torch.cat([s2, a2], 1)) - alpha * chance)
        optimizers[1].zero_grad()
        F.mse_loss(critic(torch.cat([s, torch.randn(6, 1)], 1)), goal).backward()
        optimizers[1].step()
        action, chance = act(s)
        optimizers[0].zero_grad()
        (alpha * chance - critic(torch.cat([s, action], 1))).mean().backward()
        optimizers[0].step()
        optimizers[2].zero_grad()
        (-log_alpha.exp() * (chance.detach() - 1)).mean().backward()
        optimizers[2].step()
        soft_update(slow, critic)


@clean
def proximal_policy_epochs():
    body, policy, value = mlp(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    parameters = [*body.parameters(), *policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, eps=1e-5)
    for _ in range(3):
        states = torch.randn(16, 4)
        with torch.no_grad():
            hidden = body(states)
            old = Categorical(logits=policy(hidden))
            actions, values = old.sample(), value(hidden)[:, 0]
            chances = old.log_prob(actions)
        advantages = torch.randn(16)
        returns = advantages + values
        for _ in range(2):
            for chosen in torch.randperm(16).split(8):
                hidden = body(states[chosen])
                now = Categorical(logits=policy(hidden))
                ratio = (now.log_prob(actions[chosen]) - chances[chosen]).exp()
                gain = torch.min(
                    ratio * advantages[chosen], ratio.clamp(0.8, 1.2) * advantages[chosen]
                )
                loss = -gain.mean() + F.mse_loss(value(hidden)[:, 0], returns[chosen])
                loss = loss - 0.01 * now.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()


@clean
def policy_gradient_over_episodes():
    policy = mlp(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    policy.saved_log_probs, policy.rewards = [], []
    for _ in range(4):
        for _ in range(6):
            choice = Categorical(policy(torch.randn(1, 4)).softmax(1))
            action = choice.sample()
            policy.saved_log_probs.append(choice.log_prob(action))
            policy.rewards.append(float(action))
        total, losses = 0.0, []
        for log_prob, reward in zip(policy.saved_log_probs, policy.rewards, strict=True):
            total += reward
            losses.append(-log_prob * total)
        optimizer.zero_grad()
        torch.cat(losses).sum().backward()
        optimizer.step()
        del policy.rewards[:]
        del policy.saved_log_probs[:]


@clean
def truncated_backpropagation_through_time():
    rnn, head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 3)
    optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
    text = torch.randn(2, 40, 3)
    hidden = None
    for start in range(0, 35, 5):
        if hidden is not None:
            hidden = tuple(h.detach() for h in hidden)
        out, hidden = rnn(text[:, start : start + 5], hidden)
        loss = F.mse_loss(head(out), text[:, start + 1 : start + 6])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(rnn.parameters(), 0.25)
        optimizer.step()


@clean
def truncated_with_a_helper_that_repackages():
    def repackage(h):
        return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage(v) for v in h)

    embed, rnn, head = nn.Embedding(9, 5), nn.GRU(5, 5), nn.Linear(5, 9)
    parts = nn.ModuleList([embed, rnn, head])
    hidden = torch.zeros(1, 4, 5)
    for _ in range(8):
        tokens = torch.randint(0, 9, (6, 4))
        parts.zero_grad()
        hidden = repackage(hidden)
        out, hidden = rnn(embed(tokens[:-1]), hidden)
        F.cross_entropy(head(out).flatten(0, 1), tokens[1:].flatten()).backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 0.25)
        for p in parts.parameters():
            p.data.add_(p.grad, alpha=-0.1)


@clean
def cell_by_cell_with_teacher_forcing():
    encoder, decoder, head = nn.GRUCell(3, 5), nn.GRUCell(3, 5), nn.Linear(5, 3)
    optimizer = torch.optim.Adam([p for m in (encoder, decoder, head) for p in m.parameters()])
    for step in range(6):
        source, goal = torch.randn(5, 2, 3), torch.randn(4, 2, 3)
        hidden = torch.zeros(2, 5)
        for item in source:
            hidden = encoder(item, hidden)
        token, loss = torch.zeros(2, 3), 0.0
        for wanted in goal:
            hidden = decoder(token, hidden)
            out = head(hidden)
            loss += F.mse_loss(out, wanted)
            token = wanted if step % 2 else out.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def persistent_memory_of_a_transformer():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters())
    memory = torch.zeros(2, 3, 4)
    for _ in range(6):
        segment = torch.randn(2, 3, 4)
        out = layer(torch.cat([memory, segment], 1))[:, 3:]
        loss = F.mse_loss(out, segment)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory = out.detach()


@clean
def meta_learning_by_second_order():
    model = mlp(2, 1)
    outer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(4):
        outer.zero_grad()
        total = 0.0
        for _ in range(3):
            x, y, x2, y2 = (torch.randn(5, n) for n in (2, 1, 2, 1))
            fast = dict(model.named_parameters())
            for _ in range(2):
                loss = F.mse_loss(functional_call(model, fast, x), y)
                slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                fast = {
                    name: weight - 0.1 * slope
                    for (name, weight), slope in zip(fast.items(), slopes, strict=True)
                }
            total = total + F.mse_loss(functional_call(model, fast, x2), y2)
        total.backward()
        outer.step()


@clean
def meta_learning_by_first_order():
    model = mlp(2, 1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        outer.zero_grad()
        for _ in range(2):
            learner = copy.deepcopy(model)
            inner = torch.optim.SGD(learner.parameters(), lr=0.1)
            for _ in range(3):
                inner.zero_grad()
                F.mse_loss(learner(torch.randn(5, 2)), torch.randn(5, 1)).backward()
                inner.step()
            for mine, theirs in zip(model.parameters(), learner.parameters(), strict=True):
                step = (mine.data - theirs.data) / 2
                mine.grad = step if mine.grad is None else mine.grad + step
        outer.step()


@clean
def reptile():
    model = mlp(2, 1)
    for _ in range(4):
        before = {k: v.clone() for k, v in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(5, 2)), torch.randn(5, 1)).backward()
            optimizer.step()
        after = model.state_dict()
        model.load_state_dict({k: before[k] + 0.5 * (after[k] - before[k]) for k in before})


@clean
def per_sample_gradients_clipped_and_noised():
    model = mlp(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(parameters, x, y):
        return F.mse_loss(functional_call(model, parameters, x[None]), y[None])

    for _ in range(5):
        x, y = torch.randn(6, 3), torch.randn(6, 1)
        parameters = {k: v.detach() for k, v in model.named_parameters()}
        each = vmap(grad(loss_of), (None, 0, 0))(parameters, x, y)
        for name, parameter in model.named_parameters():
            norm = each[name].flatten(1).norm(dim=1).clamp(min=1.0)
            scaled = each[name] / norm.view(-1, *[1] * parameter.ndim)
            parameter.grad = scaled.mean(0) + 0.01 * torch.randn_like(parameter)
        optimizer.step()
        optimizer.zero_grad()


@clean
def hyper_gradient_through_one_step():
    weight = torch.randn(3, requires_grad=True)
    log_rate = torch.tensor(-2.0, requires_grad=True)
    outer = torch.optim.Adam([log_rate], lr=0.05)
    for _ in range(6):
        x, y = torch.randn(8, 3), torch.randn(8)
        (slope,) = torch.autograd.grad(F.mse_loss(x @ weight, y), weight)
        moved = weight.detach() - log_rate.exp() * slope
        outer.zero_grad()
        F.mse_loss(torch.randn(8, 3) @ moved, torch.randn(8)).backward()
        outer.step()
        weight = moved.detach().requires_grad_()


@clean
def architecture_and_weights_in_turn():
    branches = nn.ModuleList([nn.Linear(4, 4), nn.Identity(), nn.Sequential(nn.Linear(4, 4))])
    head, alphas = nn.Linear(4, 1), nn.Parameter(torch.zeros(3))
    weights = torch.optim.SGD([*branches.parameters(), *head.parameters()], lr=0.05)
    choice = torch.optim.Adam([alphas], lr=3e-3)

    def loss():
        x = torch.randn(6, 4)
        mixed = sum(a * branch(x) for a, branch in zip(alphas.softmax(0), branches, strict=True))
        return head(mixed).square().mean()

    for _ in range(6):
        choice.zero_grad()
        loss().backward()
        choice.step()
        weights.zero_grad()
        loss().backward()
        weights.step()


@clean
def dreaming_of_an_input():
    model = mlp(4, 3).eval().requires_grad_(False)
    picture = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.LBFGS([picture], max_iter=3)
    for _ in range(4):

        def closure():
            optimizer.zero_grad()
            loss = -model(picture)[0, 1] + 0.1 * picture.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            picture.clamp_(-1, 1)


@clean
def fitting_physics_by_derivatives_of_the_network():
    net = mlp(1, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(6):
        t = torch.rand(10, 1, requires_grad=True)
        u = net(t)
        (du,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
        (ddu,) = torch.autograd.grad(du, t, torch.ones_like(du), create_graph=True)
        loss = (ddu + u).square().mean() + (net(torch.zeros(1, 1)) - 1).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def energy_based_by_langevin_samples():
    energy = mlp(2, 1)
    optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3)
    chain = torch.randn(8, 2)
    for _ in range(5):
        sample = chain.clone().requires_grad_()
        for _ in range(3):
            (slope,) = torch.autograd.grad(energy(sample).sum(), sample)
            sample = (sample - 0.1 * slope + 0.01 * torch.randn_like(sample)).detach()
            sample.requires_grad_()
        chain = sample.detach()
        loss = energy(torch.randn(8, 2)).mean() - energy(chain).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def diffusion_with_a_schedule_and_an_average():
    net = mlp(3, 2)
    average = copy.deepcopy(net).eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.2, 10), 0)
    for _ in range(6):
        x, t = torch.randn(8, 2), torch.randint(0, 10, (8,))
        noise = torch.randn_like(x)
        mixed = kept[t, None].sqrt() * x + (1 - kept[t, None]).sqrt() * noise
        loss = F.mse_loss(net(torch.cat([mixed, t[:, None] / 10], 1)), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        soft_update(average, net)
    with torch.no_grad():
        x = torch.randn(2, 2)
        for step in reversed(range(10)):
            x = x - 0.1 * average(torch.cat([x, torch.full((2, 1), step / 10)], 1))


@clean
def vector_quantised_codes_by_straight_through():
    encoder, decoder, codes = nn.Linear(4, 2), nn.Linear(2, 4), nn.Embedding(6, 2)
    parts = (encoder, decoder, codes)
    optimizer = torch.optim.Adam([p for m in parts for p in m.parameters()])
    for _ in range(8):
        x = torch.randn(6, 4)
        z = encoder(x)
        chosen = codes(torch.cdist(z, codes.weight).argmin(1))
        straight = z + (chosen - z).detach()
        loss = F.mse_loss(decoder(straight), x)
        loss = loss + F.mse_loss(chosen, z.detach()) + 0.25 * F.mse_loss(z, chosen.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def codes_kept_by_moving_averages():
    encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
    codes, counts, sums = torch.randn(6, 2), torch.ones(6), torch.zeros(6, 2)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for _ in range(8):
        x = torch.randn(6, 4)
        z = encoder(x)
        index = torch.cdist(z.detach(), codes).argmin(1)
        chosen = codes[index]
        loss = F.mse_loss(decoder(z + (chosen - z).detach()), x) + F.mse_loss(z, chosen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hot = F.one_hot(index, 6).float()
        counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
        sums.mul_(0.9).add_(hot.T @ z.detach(), alpha=0.1)
        codes.copy_(sums / counts.clamp(min=1e-3)[:, None])


@buggy("GCS303")
def critic_without_a_backward():
    actor, critic = net(), net()
    optimize_actor = torch.optim.Adam(actor.parameters())
    optimize_critic = torch.optim.Adam(critic.parameters())
    for x, y in data():
        weights = actor(x).sigmoid()
        value = F.mse_loss(critic(x), y)
        optimize_actor.zero_grad()
        (weights * y).mean().backward()
        optimize_actor.step()
        optimize_critic.zero_grad()
        optimize_critic.step()  # <- here
        assert value.isfinite()


def workers_of(count, rounds, hand_over, clear):
    shared = mlp(4, 1)
    optimizer = torch.optim.Adam(shared.parameters())
    workers = [mlp(4, 1) for _ in range(count)]
    for _ in range(rounds):
        for worker in workers:
            worker.load_state_dict(shared.state_dict())
            loss = (worker(torch.randn(6, 4)) - torch.randn(6, 1)).square().mean()
            optimizer.zero_grad()
            clear(worker)
            yield loss
            for mine, theirs in zip(worker.parameters(), shared.parameters(), strict=True):
                hand_over(mine, theirs)
            optimizer.step()


def share(mine, theirs):
    theirs.grad = mine.grad


def share_a_copy(mine, theirs):
    theirs.grad = mine.grad.clone()


@buggy("GCS301")
def workers_whose_gradients_are_shared_and_never_cleared():
    for loss in workers_of(3, 5, share, clear=lambda _: None):
        loss.backward()  # <- here


@buggy("GCS301")
def workers_whose_gradients_are_copied_and_never_cleared():
    for loss in workers_of(2, 5, share_a_copy, clear=lambda _: None):
        loss.backward()  # <- here


@clean
def workers_whose_gradients_are_shared():
    for loss in workers_of(3, 5, share, clear=nn.Module.zero_grad):
        loss.backward()


@clean
def workers_whose_gradients_are_copied_and_zeroed():
    def clear(worker):
        worker.zero_grad(set_to_none=False)

    for loss in workers_of(2, 5, share_a_copy, clear):
        loss.backward()


@clean
def workers_whose_gradients_are_added_up_for_some_time():
    def clear(worker):
        for parameter in worker.parameters():
            parameter.grad = None

    def add(mine, theirs):
        share_a_copy(mine, theirs)

    for loss in workers_of(2, 5, add, clear):
        (loss / 2).backward(retain_graph=True)
        (loss / 2).backward()


@clean
def master_weights_in_double_precision():
    model = mlp(4, 1)
    master = [each.detach().double().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.SGD(master, lr=0.01)
    for x, y in data(8):
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        for mine, theirs in zip(model.parameters(), master, strict=True):
            theirs.grad = mine.grad.double()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), master, strict=True):
                mine.copy_(theirs)
