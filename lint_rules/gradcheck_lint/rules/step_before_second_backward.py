"""GCS109: a step changes weights that a pending backward needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from gradcheck_lint.model.flow import Backward, Forward, GradMode, Step
from gradcheck_lint.model.nearness import STEPS
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import last_word
from gradcheck_lint.model.values import Kind, Origin, all_are, held_by, sites, through_all
from gradcheck_lint.rules._graph_flow import Flow, flow
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class StepBeforeSecondBackward(Rule):
    """An optimizer steps while a later backward still goes through the weights it changes."""

    entry = catalogue.STEP_BEFORE_SECOND_BACKWARD
    part = Part.BACKWARD

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the function steps as well."""
        return not STEPS.isdisjoint(function.scope.words)

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every step between a model's forward and a backward through it."""
        events = list(function.events())
        for index, event in enumerate(events):
            if not isinstance(event, Step):
                continue
            is_known = all_are(event.values, Kind.OPTIMIZER) and not _is_argument(event)
            if not is_known and not _is_argument(event):
                continue
            owned = held_by(event.values)
            if not any(
                isinstance(other, Backward) and other.loops == event.loops
                for other in events[:index]
            ):
                continue
            before = [
                other
                for other in events[:index]
                if isinstance(other, Forward)
                and other.mode is not GradMode.DISABLED
                and other.loops == event.loops
                and other.arms == event.arms
                and (
                    sites(other.values) & owned
                    if is_known
                    else _is_named_after(event.receiver, other.receiver)
                )
            ]
            if not before:
                continue
            for later in events[index + 1 :]:
                if not isinstance(later, Backward) or later.loops != event.loops or later.partial:
                    continue
                reached = through_all(later.values)
                known = next((other for other in before if id(other.node) in reached), None)
                if known is None or later.expects_error:
                    continue
                how_sure = flow(function, known.node, later.node)
                is_beside = later.arms == event.arms
                if how_sure is Flow.NONE or not (is_known or is_beside):
                    continue
                is_certain = is_known and is_beside and how_sure is Flow.SURE
                receiver = event.receiver or "the optimizer"
                yield Violation(
                    event.node,
                    f"`{receiver}` changes the weights of `{known.receiver}` here, but a later "
                    "backward() goes through its forward from before the step: torch raises, "
                    "because the saved weights are overwritten",
                    Severity.ERROR if is_certain else Severity.WARNING,
                    f"step after the last backward(), or call `{known.receiver}` again",
                    ((known.node, "ran here, before"), (later.node, "needs the old weights")),
                )
                break

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def train(G, D, loader, bce, one, zero):
    og = torch.optim.Adam(G.parameters(), lr=2e-4)
    od = torch.optim.Adam(D.parameters(), lr=2e-4)
    for z, real in loader:
        judged = D(G(z))
        od.zero_grad()
        (bce(D(real), one) + bce(judged, zero)).backward(retain_graph=True)
        od.step()
        og.zero_grad()
        bce(judged, one).backward()
        og.step()
""",
            lines=(10,),
        ),
        Invalid(
            """\
import torch

def train(generator, critic, loader):
    opt_g = torch.optim.Adam(generator.parameters())
    opt_c = torch.optim.Adam(critic.parameters())
    for real, noise in loader:
        score = critic(generator(noise)).mean()
        opt_c.zero_grad()
        (score - critic(real).mean()).backward(retain_graph=True)
        opt_c.step()

        opt_g.zero_grad()
        (-score).backward()
        opt_g.step()
""",
            lines=(10,),
        ),
        Invalid(
            """\
import torch

class Adversaries:
    def __init__(self, G, D):
        self.G, self.D = G, D
        self.og = torch.optim.Adam(self.G.parameters())
        self.od = torch.optim.Adam(self.D.parameters())

    def train_step(self, real, z):
        judged = self.D(self.G(z)).mean()
        self.od.zero_grad()
        (judged - self.D(real).mean()).backward(retain_graph=True)
        self.od.step()
        self.og.zero_grad()
        (-judged).backward()
        self.og.step()
""",
            lines=(13,),
        ),
        Invalid(
            """\
import torch

def update(actor, critic, actor_optimizer, critic_optimizer, states, values):
    actor_loss = -critic(actor(states)).mean()
    critic_loss = (critic(states) - values).pow(2).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()

def train(netG, netD, loader, optimizerG, optimizerD: torch.optim.Optimizer):
    for noise, real in loader:
        judged = netD(netG(noise)).mean()
        optimizerD.zero_grad()
        (judged - netD(real).mean()).backward(retain_graph=True)
        optimizerD.step()
        optimizerG.zero_grad()
        (-judged).backward()
        optimizerG.step()
""",
            lines=(8, 18),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
import torch

def train(G, D, loader, scaler, losses):
    og = torch.optim.Adam(G.parameters(), lr=2e-4)
    od = torch.optim.Adam(D.parameters(), lr=2e-4)
    for z, real in loader:
        judged = D(G(z))
        od.zero_grad()
        scaler.scale(losses.hinge_loss(D(real), judged)).backward(retain_graph=True)
        scaler.step(od)
        og.zero_grad()
        scaler.scale(-judged.mean()).backward()
        scaler.step(og)
        scaler.update()
""",
            lines=(10,),
        ),
        Invalid(
            """\
import torch

def train(G, D, loader, judge):
    og = torch.optim.Adam(G.parameters(), lr=2e-4)
    od = torch.optim.Adam(D.parameters(), lr=2e-4)
    for z, real in loader:
        judged = D(G(z))
        od.zero_grad()
        judge.compare(D(real), judged).backward(retain_graph=True)
        od.step()
        og.zero_grad()
        judge.fool(judged).backward()
        og.step()
""",
            lines=(10,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def train(generator, critic, loader):
    opt_g = torch.optim.Adam(generator.parameters())
    opt_c = torch.optim.Adam(critic.parameters())
    for real, noise in loader:
        fake = generator(noise)
        opt_g.zero_grad()
        (-critic(fake).mean()).backward()
        opt_g.step()
        opt_c.zero_grad()
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        opt_c.step()
""",
            why="the second loss is detached from the first model",
        ),
        Valid(
            """\
import torch

def update(actor, critic, actor_optimizer, critic_optimizer, states, values):
    actor_loss = -critic(actor(states)).mean()
    critic_loss = (critic(states) - values).pow(2).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    actor_optimizer.step()

def advantage(actor, critic, actor_optimizer, critic_optimizer, states, values):
    value = critic(states)
    policy_loss = (actor(states) * (values - value).detach()).mean()
    critic_optimizer.zero_grad()
    (value - values).pow(2).mean().backward()
    critic_optimizer.step()
    actor_optimizer.zero_grad()
    policy_loss.backward()
    actor_optimizer.step()
""",
            why="both losses come before the steps, or the second one needs no weight that changes",
        ),
        Valid(
            """\
import torch
from torch import nn

def train(loader, augment, controller, regularize_every):
    generator, critic = nn.Linear(3, 3), nn.Linear(3, 1)
    opt_g = torch.optim.Adam(generator.parameters())
    opt_c = torch.optim.Adam(critic.parameters())
    for index, (noise, real) in enumerate(loader):
        opt_c.zero_grad()
        judged = critic(real)
        (critic(generator(noise).detach()).mean() - judged.mean()).backward()
        opt_c.step()
        strength = controller.tune(judged)
        fake, _ = augment(generator(noise), strength)
        opt_g.zero_grad()
        (-critic(fake)).mean().backward()
        opt_g.step()

def regularize(args, loader, critic, critic_optimizer, controller):
    strength = 0.5
    for index, real in enumerate(loader):
        judged = critic(real)
        critic_optimizer.zero_grad()
        judged.mean().backward()
        critic_optimizer.step()
        strength = controller.tune(judged)
        if index % args.every == 0:
            real.requires_grad = True
            judged = critic(args.augment(real, strength))
            critic_optimizer.zero_grad()
            judged.pow(2).mean().backward()
            critic_optimizer.step()
""",
            why="what a controller makes of a model's answer is a number, for all that is known",
        ),
    )


def _is_argument(event: Step) -> bool:
    """Tell whether the optimizer is handed in, so that only its name says what it owns."""
    return bool(event.values) and all(
        value.origin is Origin.ARGUMENT and value.kind in {Kind.OPTIMIZER, Kind.UNKNOWN}
        for value in event.values
    )


def _is_named_after(optimizer: str | None, model: str) -> bool:
    """Tell whether an optimizer has the name of a model: ``d_opt`` and ``D``, ``optimizerD``."""
    name = _OPTIMIZER.sub("", last_word(optimizer or "").lower()).strip("_")
    whose = _NET.sub("", last_word(model).lower()).strip("_")
    return bool(name) and _SHORT.get(name, name) == _SHORT.get(whose, whose)


_OPTIMIZER: Final = re.compile(r"optimi[sz]er|optim|opt(?![a-z])|(?<![a-z])opt")
_NET: Final = re.compile(r"^net_?|_?(?:net|model|network)$")
_SHORT: Final = {"discriminator": "d", "dis": "d", "generator": "g", "gen": "g"}
