"""What a training step does out of a function's sight: rules stay silent where it may be done."""

from __future__ import annotations

import textwrap

import pytest

from gradcheck_lint.engine import lint_source
from gradcheck_suite.severity import Severity

_HEAD = """
import contextlib
import functools
import operator

import torch
from .other import helper
"""

_FUNCTION = """
def fit(model, optimizer, loader):
{before}
    for x in loader:
{first}
        model(x).mean().backward()
        optimizer.step()
{last}
"""

_METHOD = """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self, loader):
        model, optimizer = self.model, self.optimizer
{before}
        for x in loader:
{first}
            model(x).mean().backward()
            optimizer.step()
{last}
"""

# What is written before the loop, and what in it.
_ROUTES = {
    "lambda": ("reset = lambda: optimizer.zero_grad()", "reset()"),
    "bound method": ("reset = optimizer.zero_grad", "reset()"),
    "partial": ("reset = functools.partial(optimizer.zero_grad, set_to_none=True)", "reset()"),
    "methodcaller": ("reset = operator.methodcaller('zero_grad')", "reset(optimizer)"),
    "getattr": ("", "getattr(optimizer, 'zero_grad')()"),
    "list of methods": ("hooks = [optimizer.zero_grad]", "[hook() for hook in hooks]"),
    "list of lambdas": ("todo = [lambda: optimizer.zero_grad()]", "for f in todo:\n    f()"),
    "dictionary": ("table = {'end': optimizer.zero_grad}", "table['end']()"),
    "values of a dictionary": (
        "table = {'end': optimizer.zero_grad}",
        "for f in table.values():\n    f()",
    ),
    "map": ("", "list(map(lambda known: known.zero_grad(), [optimizer]))"),
    "comprehension": ("", "[known.zero_grad() for known in [optimizer]]"),
    "nested function": (
        "def reset():\n    for p in model.parameters():\n        p.grad = None",
        "reset()",
    ),
    "function of a function": (
        (
            "def make(known):\n    def reset():\n        known.zero_grad()\n    return reset\n"
            "reset = make(optimizer)"
        ),
        "reset()",
    ),
    "method of a function": (
        "def make():\n    return optimizer.zero_grad\nreset = make()",
        "reset()",
    ),
    "context manager": (
        "@contextlib.contextmanager\ndef clean():\n    optimizer.zero_grad()\n    yield",
        "with clean():\n    pass",
    ),
    "object in with": (
        (
            "class Clean:\n"
            "    def __init__(self, known):\n        self.known = known\n"
            "    def __enter__(self):\n        self.known.zero_grad()\n"
            "    def __exit__(self, *error):\n        pass\n"
            "clean = Clean(optimizer)"
        ),
        "with clean:\n    pass",
    ),
    "generator": (
        (
            "def batches(known):\n"
            "    for x in known:\n        optimizer.zero_grad()\n        yield x\n"
            "loader = batches(loader)"
        ),
        "pass",
    ),
    "object in for": (
        (
            "class Batches:\n"
            "    def __init__(self, known, other):\n        self.known, self.other = known, other\n"
            "    def __iter__(self):\n        for x in self.known:\n"
            "            self.other.zero_grad()\n            yield x\n"
            "loader = Batches(loader, optimizer)"
        ),
        "pass",
    ),
    "called object": (
        (
            "class Reset:\n"
            "    def __init__(self, *known):\n        self.known = known\n"
            "    def __call__(self):\n        for one in self.known:\n            one.zero_grad()\n"
            "reset = Reset(optimizer)"
        ),
        "reset()",
    ),
    "method in a list": (
        (
            "class Reset:\n"
            "    def __init__(self, known):\n        self.known = known\n"
            "    def reset(self):\n        self.known.zero_grad()\n"
            "todo = [Reset(optimizer).reset]"
        ),
        "todo[0]()",
    ),
    "hook": (
        "optimizer.register_step_post_hook(lambda known, *_: known.zero_grad())",
        "pass",
    ),
    "function as hook": (
        "def after(known, *_):\n    known.zero_grad()\noptimizer.register_step_post_hook(after)",
        "pass",
    ),
    "decorator": (
        (
            "def zeroing(f):\n    def inner(*given):\n        optimizer.zero_grad()\n"
            "        return f(*given)\n    return inner\n"
            "@zeroing\ndef forward(x):\n    return model(x)"
        ),
        "forward(x)",
    ),
    "subscribers": (
        (
            "class Bus:\n"
            "    def __init__(self):\n        self.known = []\n"
            "    def on(self, f):\n        self.known.append(f)\n"
            "    def fire(self):\n        for f in self.known:\n            f()\n"
            "bus = Bus()\nbus.on(optimizer.zero_grad)"
        ),
        "bus.fire()",
    ),
    "attribute": ("model.reset = optimizer.zero_grad", "model.reset()"),
    "object of another file": ("cleaner = helper(optimizer)", "cleaner()"),
    "method of another file": ("cleaner = helper(model)", "cleaner.reset()"),
    "function of another file": ("", "helper(optimizer)"),
}


def _indented(text: str, levels: int) -> str:
    return textwrap.indent(text or "pass", "    " * levels)


@pytest.mark.parametrize(("before", "inside"), _ROUTES.values(), ids=_ROUTES.keys())
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(("frame", "level"), [(_FUNCTION, 1), (_METHOD, 2)], ids=["def", "class"])
def test_zeroing_out_of_sight(
    frame: str, level: int, before: str, inside: str, is_first: bool
) -> None:
    first, last = (inside, "") if is_first else ("", inside)
    source = _HEAD + frame.format(
        before=_indented(before, level),
        first=_indented(first, level + 1),
        last=_indented(last, level + 1),
    )
    compile(source, "train.py", "exec")
    assert [f for f in lint_source(source.encode(), "train.py") if f.severity > Severity.NOTE] == []


def test_callbacks_may_zero_but_hardly_do() -> None:
    call = " " * 8 + "callbacks.on_step_end()"
    source = _HEAD + _FUNCTION.format(before="    callbacks = helper()", first="", last=call)
    findings = lint_source(source.encode(), "train.py")
    assert [(found.code, found.severity) for found in findings] == [("GCS301", Severity.WARNING)]


_MISTAKE = _HEAD + _FUNCTION.format(before="", first="", last="")


@pytest.mark.parametrize(
    "other",
    [
        "",
        "def other(optimizer):\n    return [optimizer.zero_grad]",
        "class Other:\n    def __enter__(self):\n        self.optimizer.zero_grad()",
        "def other(optimizer):\n    optimizer.zero_grad()\n\nregistry = {'other': other}",
        (
            "def right(model, optimizer, loader):\n    for x in loader:\n"
            "        optimizer.zero_grad()\n        model(x).mean().backward()\n"
            "        optimizer.step()"
        ),
    ],
    ids=["alone", "list", "with", "registry", "right twin"],
)
def test_what_a_loop_does_not_reach_excuses_nothing(other: str) -> None:
    findings = lint_source(f"{_MISTAKE}\n\n{other}\n".encode(), "train.py")
    assert [finding.code for finding in findings] == ["GCS301"]


def test_a_method_that_is_named_and_not_called_zeroes_nothing() -> None:
    source = _HEAD + _FUNCTION.format(before="", first=" " * 8 + "optimizer.zero_grad", last="")
    found = [finding.code for finding in lint_source(source.encode(), "x.py")]
    assert found == ["GCS318", "GCS301"]


# A loop that misses something, where it goes, and the code of the mistake.
_PROGRAMS = {
    "backward": (
        """
def fit(model, optimizer, loader):
    loss = None
{before}
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
{inside}
        optimizer.step()
""",
        "loss.backward()",
        "GCS303",
    ),
    "gradients by hand": (
        """
def fit(model, optimizer, loader):
{before}
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
{inside}
        optimizer.step()
""",
        "[setattr(p, 'grad', torch.ones_like(p)) for p in model.parameters()]",
        "GCS303",
    ),
    "unscale_": (
        """
def fit(model, optimizer, loader):
    scaler = torch.amp.GradScaler()
{before}
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        scaler.scale(loss).backward()
{inside}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
        "scaler.unscale_(optimizer)",
        "GCS305",
    ),
    "update": (
        """
def fit(model, optimizer, loader):
    scaler = torch.amp.GradScaler()
{before}
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
{inside}
""",
        "scaler.update()",
        "GCS310",
    ),
    "detach_": (
        """
def fit(model, optimizer, loader):
    h = torch.zeros(1)
{before}
    for x in loader:
        optimizer.zero_grad()
        y, h = model(x, h)
{inside}
        y.mean().backward()
        optimizer.step()
""",
        "h.detach_()",
        "GCS202",
    ),
    "zero_grad of another": (
        """
def fit(gen, dis, loader):
    go = torch.optim.SGD(gen.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(dis.parameters(), lr=0.1)
{before}
    for x in loader:
        go.zero_grad()
        dis(gen(x)).mean().backward()
        go.step()
{inside}
        dis(gen(x).detach()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        "optimizer.zero_grad()",
        "GCS309",
    ),
}

_WAYS = {
    "lambda": ("run = lambda *_: {act}", "run()"),
    "function": ("def run():\n    {act}", "run()"),
    "function handed on": ("def run():\n    {act}", "helper(run)"),
    "list": ("todo = [lambda: {act}]", "for run in todo:\n    run()"),
    "dictionary": ("todo = {{'end': lambda: {act}}}", "todo['end']()"),
    "context manager": (
        "@contextlib.contextmanager\ndef run():\n    yield\n    {act}",
        "with run():\n    pass",
    ),
    "object in with": (
        (
            "class Run:\n    def __enter__(self):\n        pass\n"
            "    def __exit__(self, *error):\n        {act}"
        ),
        "with Run():\n    pass",
    ),
    "called object": ("class Run:\n    def __call__(self):\n        {act}\nrun = Run()", "run()"),
    "method": ("class Run:\n    def go(self):\n        {act}\nrun = Run()", "run.go()"),
    "partial": ("run = functools.partial(lambda: {act})", "run()"),
}


@pytest.mark.parametrize(("before", "inside"), _WAYS.values(), ids=_WAYS.keys())
@pytest.mark.parametrize(("program", "act", "code"), _PROGRAMS.values(), ids=_PROGRAMS.keys())
def test_what_is_missing_is_done_out_of_sight(
    program: str, act: str, code: str, before: str, inside: str
) -> None:
    source = _HEAD + program.format(
        before=_indented(before.format(act=act), 1), inside=_indented(inside, 2)
    )
    compile(source, "train.py", "exec")
    assert [finding.code for finding in lint_source(source.encode(), "train.py")] == []
    mistake = _HEAD + program.format(before=_indented("", 1), inside=_indented("", 2))
    assert code in [finding.code for finding in lint_source(mistake.encode(), "train.py")]


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("", "helper(loss)"),
        ("engine = helper(model, optimizer)", "engine.run(x)"),
        ("engine = helper(model, optimizer)", "engine(x)"),
    ],
)
def test_a_function_of_another_file_may_differentiate(before: str, inside: str) -> None:
    program, _, _ = _PROGRAMS["backward"]
    source = _HEAD + program.format(before=_indented(before, 1), inside=_indented(inside, 2))
    assert [f for f in lint_source(source.encode(), "train.py") if f.severity > Severity.NOTE] == []


@pytest.mark.parametrize(
    ("use", "codes"),
    [
        ("if options.move:\n    move()", ["GCS101"]),
        ("move()", ["GCS101"]),
        ("with torch.no_grad():\n    helper(move)", []),
        ("register(run=move)\nmove()", []),
        ("@move\ndef moved():\n    pass\nmove()", []),
    ],
    ids=["option of that name", "call", "handed on", "by name", "decorator"],
)
def test_an_attribute_of_the_same_name_hands_no_function_on(use: str, codes: list[str]) -> None:
    source = f"{_HEAD}\nw = torch.ones(1, requires_grad=True)\ndef move():\n    w.add_(1)\n{use}\n"
    assert [finding.code for finding in lint_source(source.encode(), "x.py")] == codes
