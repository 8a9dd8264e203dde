"""Loops in which models train against or beside one another."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn

from tests.auditing.loops.bank import buggy, clean, data, net


def generator():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def discriminator(last=1):
    return nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, last))


def adams(*models):
    return [torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in models]


@clean
def dcgan_style():
    netG, netD = generator(), discriminator()  # noqa: N806 - the field's names
    opt_g, opt_d = adams(netG, netD)
    for _ in range(6):
        real = torch.randn(6, 4)
        netD.zero_grad()
        loss_real = F.binary_cross_entropy_with_logits(netD(real), torch.ones(6, 1))
        loss_real.backward()
        fake = netG(torch.randn(6, 3))
        loss_fake = F.binary_cross_entropy_with_logits(netD(fake.detach()), torch.zeros(6, 1))
        loss_fake.backward()
        opt_d.step()
        netG.zero_grad()
        F.binary_cross_entropy_with_logits(netD(fake), torch.ones(6, 1)).backward()
        opt_g.step()


@clean
def generator_before_discriminator():
    g, d = generator(), discriminator()
    opt_g, opt_d = adams(g, d)
    for _ in range(6):
        opt_g.zero_grad()
        made = g(torch.randn(6, 3))
        F.softplus(-d(made)).mean().backward()
        opt_g.step()
        opt_d.zero_grad()
        loss = F.softplus(-d(torch.randn(6, 4))).mean() + F.softplus(d(made.detach())).mean()
        loss.backward()
        opt_d.step()


@clean
def critic_with_clipped_weights():
    g, d = generator(), discriminator()
    opt_g = torch.optim.RMSprop(g.parameters(), lr=5e-5)
    opt_d = torch.optim.RMSprop(d.parameters(), lr=5e-5)
    for step in range(12):
        opt_d.zero_grad()
        fake = g(torch.randn(6, 3)).detach()
        loss = -torch.mean(d(torch.randn(6, 4))) + torch.mean(d(fake))
        loss.backward()
        opt_d.step()
        for p in d.parameters():
            p.data.clamp_(-0.01, 0.01)
        if step % 3 == 0:
            opt_g.zero_grad()
            (-torch.mean(d(g(torch.randn(6, 3))))).backward()
            opt_g.step()


@clean
def critic_with_gradient_penalty():
    g, d = generator(), discriminator()
    opt_g, opt_d = adams(g, d)
    for _ in range(4):
        for _ in range(3):
            real, fake = torch.randn(6, 4), g(torch.randn(6, 3)).detach()
            mix = torch.rand(6, 1)
            between = (mix * real + (1 - mix) * fake).requires_grad_(True)
            (slope,) = torch.autograd.grad(
                d(between).sum(), between, create_graph=True, retain_graph=True
            )
            penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
            opt_d.zero_grad()
            (d(fake).mean() - d(real).mean() + 10 * penalty).backward()
            opt_d.step()
        opt_g.zero_grad()
        (-d(g(torch.randn(6, 3))).mean()).backward()
        opt_g.step()


@clean
def lazy_penalty_with_a_frozen_opponent():
    g, d = generator(), discriminator()
    opt_g, opt_d = adams(g, d)
    for step in range(8):
        d.requires_grad_(False)
        opt_g.zero_grad()
        F.softplus(-d(g(torch.randn(6, 3)))).mean().backward()
        opt_g.step()
        d.requires_grad_(True)
        opt_d.zero_grad()
        with torch.no_grad():
            fake = g(torch.randn(6, 3))
        real = torch.randn(6, 4).requires_grad_(step % 4 == 0)
        out = d(real)
        loss = F.softplus(-out).mean() + F.softplus(d(fake)).mean()
        if step % 4 == 0:
            (slope,) = torch.autograd.grad(out.sum(), real, create_graph=True)
            loss = loss + slope.square().sum(1).mean()
        loss.backward()
        opt_d.step()


@clean
def cycle_of_two_generators():
    there, back = discriminator(4), discriminator(4)
    judge_a, judge_b = discriminator(), discriminator()
    opt_g = torch.optim.Adam([*there.parameters(), *back.parameters()])
    opt_a, opt_b = adams(judge_a, judge_b)
    for _ in range(5):
        a, b = torch.randn(6, 4), torch.randn(6, 4)
        opt_g.zero_grad()
        fake_b, fake_a = there(a), back(b)
        loss = F.mse_loss(judge_b(fake_b), torch.ones(6, 1))
        loss = loss + F.mse_loss(judge_a(fake_a), torch.ones(6, 1))
        loss = loss + 10 * (F.l1_loss(back(fake_b), a) + F.l1_loss(there(fake_a), b))
        loss.backward()
        opt_g.step()
        for judge, optimizer, real, fake in (
            (judge_a, opt_a, a, fake_a),
            (judge_b, opt_b, b, fake_b),
        ):
            optimizer.zero_grad()
            loss = F.mse_loss(judge(real), torch.ones(6, 1))
            loss = (loss + F.mse_loss(judge(fake.detach()), torch.zeros(6, 1))) / 2
            loss.backward()
            optimizer.step()


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


@clean
def domain_adversarial_by_reversal():
    features, label, domain = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)
    optimizer = torch.optim.SGD(
        [p for m in (features, label, domain) for p in m.parameters()], lr=0.01
    )
    for step in range(6):
        source, target = torch.randn(6, 4), torch.randn(6, 4) + 1
        optimizer.zero_grad()
        hidden, other = features(source), features(target)
        loss = F.cross_entropy(label(hidden), torch.randint(0, 2, (6,)))
        strength = 2 / (1 + 2.7 ** (-step)) - 1
        both = Reverse.apply(torch.cat([hidden, other]), strength)
        loss = loss + F.cross_entropy(domain(both), torch.arange(12) // 6)
        loss.backward()
        optimizer.step()


@clean
def adversarial_training_by_projected_steps():
    model = discriminator(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        x, y = torch.randn(6, 4), torch.randint(0, 2, (6,))
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            loss = F.cross_entropy(model(x + delta), y)
            loss.backward()
            delta.data = (delta + 0.1 * delta.grad.sign()).clamp(-0.3, 0.3)
            delta.grad.zero_()
        optimizer.zero_grad()
        F.cross_entropy(model(x + delta.detach()), y).backward()
        optimizer.step()


@clean
def free_adversarial_training():
    model = discriminator(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    noise = torch.zeros(6, 4)
    for _ in range(3):
        x, y = torch.randn(6, 4), torch.randint(0, 2, (6,))
        for _ in range(3):
            moved = noise.clone().requires_grad_()
            loss = F.cross_entropy(model(x + moved), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            noise += 0.1 * moved.grad.sign()
            noise.clamp_(-0.3, 0.3)


@clean
def distillation():
    teacher, student = discriminator(3), discriminator(3)
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters())
    for _ in range(6):
        x = torch.randn(6, 4)
        with torch.no_grad():
            soft = F.softmax(teacher(x) / 2, dim=1)
        loss = F.kl_div(F.log_softmax(student(x) / 2, dim=1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def mutual_learning():
    a, b = discriminator(3), discriminator(3)
    opt_a, opt_b = adams(a, b)
    for _ in range(6):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        out_a, out_b = a(x), b(x)
        loss_a = F.cross_entropy(out_a, y) + F.mse_loss(out_a, out_b.detach())
        loss_b = F.cross_entropy(out_b, y) + F.mse_loss(out_b, out_a.detach())
        opt_a.zero_grad()
        loss_a.backward()
        opt_a.step()
        opt_b.zero_grad()
        loss_b.backward()
        opt_b.step()


@clean
def self_supervised_with_a_momentum_encoder():
    online, target, predictor = discriminator(4), discriminator(4), nn.Linear(4, 4)
    target.load_state_dict(online.state_dict())
    for p in target.parameters():
        p.requires_grad = False
    optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.05)
    for _ in range(6):
        one, two = torch.randn(6, 4), torch.randn(6, 4)
        with torch.no_grad():
            goal = F.normalize(target(two), dim=1)
        loss = 2 - 2 * (F.normalize(predictor(online(one)), dim=1) * goal).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for theirs, mine in zip(target.parameters(), online.parameters(), strict=True):
            theirs.data = 0.99 * theirs.data + 0.01 * mine.data


@clean
def contrastive_with_a_queue():
    encoder = discriminator(4)
    slow = discriminator(4).requires_grad_(False)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    queue, place = F.normalize(torch.randn(12, 4), dim=1), 0
    for _ in range(6):
        x = torch.randn(3, 4)
        query = F.normalize(encoder(x), dim=1)
        with torch.no_grad():
            for theirs, mine in zip(slow.parameters(), encoder.parameters(), strict=True):
                theirs.mul_(0.9).add_(mine, alpha=0.1)
            key = F.normalize(slow(x), dim=1)
        positive = (query * key).sum(1, keepdim=True)
        logits = torch.cat([positive, query @ queue.clone().T], dim=1)
        optimizer.zero_grad()
        F.cross_entropy(logits, torch.zeros(3).long()).backward()
        optimizer.step()
        queue[place : place + 3] = key
        place = (place + 3) % 12


@clean
def stopped_gradient_on_one_branch():
    encoder, predictor = discriminator(4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.05)
    for _ in range(6):
        a, b = encoder(torch.randn(6, 4)), encoder(torch.randn(6, 4))
        loss = -F.cosine_similarity(predictor(a), b.detach()).mean() / 2
        loss = loss - F.cosine_similarity(predictor(b), a.detach()).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@buggy("GCS303")
def generator_without_a_backward():
    g, d = net(), nn.Linear(1, 1)
    opt_g, opt_d = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (g, d))
    for x, _ in data():
        made = g(x)
        opt_g.zero_grad()
        opt_g.step()  # <- here
        opt_d.zero_grad()
        d(made.detach()).square().mean().backward()
        opt_d.step()


@buggy("GCS303")
def discriminator_without_a_backward():
    g, d = net(), nn.Linear(1, 1)
    opt_g, opt_d = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (g, d))
    for x, _ in data():
        opt_g.zero_grad()
        d(g(x)).square().mean().backward()
        opt_g.step()
        loss = d(g(x).detach()).square().mean()
        opt_d.zero_grad()
        opt_d.step()  # <- here
        assert loss.grad_fn


@clean
def generator_that_waits_for_its_turn():
    g, d = net(), nn.Linear(1, 1)
    opt_g, opt_d = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (g, d))
    for step, (x, _) in enumerate(data(10)):
        opt_d.zero_grad()
        d(g(x).detach()).square().mean().backward()
        opt_d.step()
        opt_g.zero_grad()
        if step >= 5:
            d(g(x)).square().mean().backward()
        opt_g.step()
