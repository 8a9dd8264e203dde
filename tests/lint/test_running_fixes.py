"""What ``--fix`` makes of a program still runs, and computes what the program computed."""

from __future__ import annotations

import itertools
import random

import pytest

from gradcheck_lint.engine import lint_source
from gradcheck_lint.fixes import fix_source
from gradcheck_lint.rules import load_rules
from tests.lint.fixtures_of_rules import fixtures_of
from tests.lint.program_variants import variants
from tests.lint.running import run

pytest.importorskip("torch")

_RAISES = {"GCS107", "GCS903"}
"""Mistakes that raise: what the program computes can't be compared."""
_COMPUTES_ANEW = {"GCS305"}
"""Mistakes that make what is computed wrong."""


def _fixed(source, codes=None):
    return fix_source(source.encode(), "program.py", codes=codes).source.decode()


_EXAMPLES = [
    pytest.param(rule.entry.code, example.source, id=f"{rule.entry.slug}-{example.name}")
    for rule in load_rules()
    for example in fixtures_of(rule.entry.slug).invalid
    if _fixed(example.source, [rule.entry.code]) != example.source
]


def test_examples_of_every_rule_with_a_safe_fix_are_run():
    codes = {parameter.values[0] for parameter in _EXAMPLES}
    assert codes == {
        *("GCS107", "GCS201", "GCS305", "GCS504", "GCS901", "GCS902", "GCS903"),
    }  # fmt: skip


@pytest.mark.parametrize(("code", "source"), _EXAMPLES)
@pytest.mark.sampled(every=4)
def test_safe_fix_of_an_example_keeps_what_the_program_does(code, source):
    were_fixed = 0
    for name, text in variants(source):
        fixed = _fixed(text, [code])
        if fixed == text:
            continue
        were_fixed += 1
        ran = 0
        for pairs, classes in itertools.product((False, True), repeat=2):
            before = run(text, pairs=pairs, classes=classes)
            after = run(fixed, pairs=pairs, classes=classes)
            if after.raised is not None:
                # Stubs that do not suit the program, which it has not run with either.
                assert before.raised == after.raised, name
                continue
            ran += 1
            if code in _RAISES:
                assert before.raised is not None, name
            elif code not in _COMPUTES_ANEW:
                assert before == after, name
        assert ran, name
        again = lint_source(fixed.encode(), "program.py")
        known = {finding.code for finding in lint_source(text.encode(), "program.py")}
        assert {finding.code for finding in again if finding.severity == "error"} <= known, name
        if code in _RAISES | _COMPUTES_ANEW:
            assert code not in {finding.code for finding in again}, name
    assert were_fixed > 1


_CLIP_A = "torch.nn.utils.clip_grad_norm_(model.a.parameters(), 0.01)"
_CLIP_B = "torch.nn.utils.clip_grad_value_(model.b.parameters(), 0.01)"
_WINDOW = (
    [_CLIP_A],
    [_CLIP_B],
    ["scaler.unscale_(optimizer)"],
    ["unscale(scaler, optimizer)"],
    ["clip(model)"],
    ["if number % 2:", f"    {_CLIP_A}"],
    ["if flag:", f"    {_CLIP_B}"],
    ["if flag:", "    scaler.unscale_(optimizer)"],
    ["if number == 1:", "    continue"],
    ["for layer in (model.a, model.b):", "    " + _CLIP_A.replace("model.a", "layer")],
    ["norm = " + _CLIP_A, "print(float(norm))"],
    ["scaler.scale(model(x).square().mean()).backward()"],
    ["optimizer, other = optimizer, other"],
    ["scaler.step(other)"],
    ["model.a.bias.grad.mul_(0.5)"],
)
_END = ["scaler.step(optimizer)", "scaler.update()"]


def _scaled_loop(chance):
    """Return a training loop with a scaler, whose window is put together by chance."""
    window = [line for part in chance.choices(_WINDOW, k=chance.randint(1, 4)) for line in part]
    lines = ["optimizer.zero_grad()", "scaler.scale(model(x).mean()).backward()"]
    if chance.random() < 0.3:
        end = ["if number % 2:", *(f"    {line}" for line in [*window, *_END])]
    elif chance.random() < 0.3:
        end = [*window, "if number % 2:", *(f"    {line}" for line in _END)]
    else:
        end = [*window, *_END]
    body = "\n".join(f"        {line}" for line in [*lines, *end])
    helpers = "def unscale(scaler, optimizer):\n    scaler.unscale_(optimizer)\n\n" * (
        "unscale(" in body
    ) + f"def clip(model):\n    {_CLIP_A}\n\n" * ("clip(model)" in body)
    return (
        f"import torch\n\n{helpers}"
        "def train(model, loader, optimizer, scaler):\n"
        "    other = torch.optim.SGD(model.b.parameters(), lr=0.1)\n"
        f"    for number, x in enumerate(loader):\n{body}\n"
        "    return scaler.get_scale()\n"
    )


_STORES = (
    ["losses.append(loss)"],
    ["losses.append(loss * 2)"],
    ["losses += [loss]"],
    ["total += loss"],
    ["total = total + 0.5 * loss"],
    ["total = loss if total is None else total + loss"],
    ["best = loss if best is None else torch.minimum(best, loss)"],
    ["history['loss'].append(loss)"],
)
_USES = (
    ["print(losses[-1].requires_grad, losses[-1].item())"],
    ["sum(losses).backward(retain_graph=True)"],
    ["losses[0].backward()"],
    ["loss = loss + 0.1 * losses[-1]"],
    ["loss = loss + total"],
    ["total.backward(retain_graph=True)"],
    ["(gradient,) = torch.autograd.grad(losses[-1], model.a.weight, retain_graph=True)"],
    ["losses = losses[-1:]"],
    ["number += 1"],
    ["losses[-1].mul_(2)"],
)
_ALONE = [use for (use,) in _USES[:6]]
_BACKWARD = (["loss.backward()"], ["loss.backward(retain_graph=True)"])


def _keeping_loop(chance):
    """Return a training loop that keeps losses, put together by chance."""
    parts = [
        chance.choice(_STORES),
        chance.choice(_BACKWARD),
        ["optimizer.step()"],
        *chance.choices(_STORES, k=chance.randint(0, 1)),
        *chance.choices(_USES, k=chance.randint(0, 2)),
    ]
    chance.shuffle(parts)
    lines = ["optimizer.zero_grad()", "loss = model(x).square().mean()"]
    lines += [line for part in parts for line in part]
    body = "\n".join(f"        {line}" for line in lines)
    after = chance.choice(
        ["return total, losses", "return float(total)", *(use for (use,) in _USES[:6])]
    )
    return (
        "import torch\n\n"
        "def train(model, loader, optimizer):\n"
        "    total, best, losses, history = 0.0, None, [], {'loss': []}\n"
        f"    for number, x in enumerate(loader):\n{body}\n"
        f"    {after}\n"
    )


@pytest.mark.parametrize(
    ("write", "seeds", "least"), [(_scaled_loop, 400, 40), (_keeping_loop, 400, 40)]
)
@pytest.mark.slow
def test_safe_fix_never_ends_a_program_that_runs(write, seeds, least):
    fixed_and_run = 0
    for seed in range(seeds):
        source = write(random.Random(seed))
        fixed = _fixed(source)
        if fixed == source:
            continue
        before = run(source, pairs=False, classes=False)
        if before.raised is None:
            after = run(fixed, pairs=False, classes=False)
            fixed_and_run += 1
            assert after.raised is None, fixed
            assert write is _scaled_loop or after == before, fixed
    assert fixed_and_run >= least
