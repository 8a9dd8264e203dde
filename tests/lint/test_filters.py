"""What decides before the parse, or before a function is read, that a rule finds nothing there."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_lint import engine
from gradcheck_lint.model.earlier_use import EarlierUse
from gradcheck_lint.model.module import ModuleModel
from gradcheck_lint.model.provenance import Write
from gradcheck_lint.model.scopes import FunctionScope, Part
from gradcheck_lint.rules import RULES, RuleReference, load_rules
from gradcheck_lint.rules._container_signs import CONTAINER_ON_ATTRIBUTE
from gradcheck_lint.rules._signs import (
    CALL_IN_PLACE,
    CONVERTED_PARAMETER,
    EVALUATION,
    LEAF_WORD,
    LOOP_OVER_PARAMETERS,
    OPTIMIZER_NAME,
    PARAMETER_ALIAS,
    SUBSCRIPT_WRITE,
    UPDATE_BY_GRADIENT,
    Signs,
)
from gradcheck_lint.rules._write_signs import (
    AUGMENTED_WRITE,
    ITEM_MADE_OF_ITEM,
    ITEM_MOVED_IN_LOOP,
    ITEM_WRITE,
)
from gradcheck_lint.skeleton import Skeleton
from tests.lint.fixtures_of_rules import fixtures_of

if TYPE_CHECKING:
    from gradcheck_lint.rules._signs import Pattern


@pytest.fixture
def unfiltered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply every rule to the whole tree of every function of every file."""
    monkeypatch.setattr(engine, "_look", lambda *_: engine._Look())
    monkeypatch.setattr(RuleReference, "concerns", lambda _self, _source: True)
    monkeypatch.setattr(FunctionScope, "parts", frozenset(Part))
    for reference in RULES:
        monkeypatch.setattr(type(reference.load()), "may_find", lambda _self, _function: True)


def _sources() -> list[str]:
    rules = [reference.load() for reference in RULES]
    fixtures = [fixtures_of(rule.entry.slug) for rule in rules]
    return [one.source for each in fixtures for one in (*each.invalid, *each.valid[::3])]


def _found(sources: list[str]) -> list[list[tuple[str, int]]]:
    return [
        [
            (finding.code, finding.location.line if finding.location else 0)
            for finding in engine.lint_source(source.encode(), "x.py")
        ]
        for source in sources
    ]


def test_filters_lose_no_finding(request: pytest.FixtureRequest) -> None:
    sources = _sources()
    filtered = _found(sources)
    request.getfixturevalue("unfiltered")
    assert filtered == _found(sources)


_OTHERS = """
import os
from torch import nn


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.others = {}

    def forward(self, other):
        for key in other:
            other[key] = self.others[key] + 1
        return other


def unrelated(path, *, depth=0):
    total = 0
    while depth:
        total += depth
        depth -= 1
    return os.path.join(path, str(total))
"""


def _inside(source: str, *, function: bool) -> str:
    """Put an example among other code, or into a function with an outer one and a class."""
    future = "from __future__ import annotations\n"
    body = source.replace(future, "")
    if function:
        body = "def around():\n    class Inner:\n        def method(self):\n" + textwrap.indent(
            body + "\npass\n", " " * 12
        )
    return f"{future}{_OTHERS}\n{body}\n{_OTHERS.replace('Other', 'Another')}"


@pytest.mark.parametrize("function", [False, True], ids=["among others", "in a function"])
def test_filters_lose_nothing_in_larger_files(
    function: bool, request: pytest.FixtureRequest
) -> None:
    rules = [reference.load() for reference in RULES]
    sources = [
        _inside(example.source, function=function)
        for rule in rules
        for example in fixtures_of(rule.entry.slug).invalid
    ]
    filtered = _found(sources)
    assert sum(map(bool, filtered)) > len(sources) // (3 if function else 2)
    request.getfixturevalue("unfiltered")
    assert filtered == _found(sources)


def test_a_filter_that_is_too_strict_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = _sources()[:20]
    before = _found(sources)
    monkeypatch.setattr(FunctionScope, "parts", frozenset())
    assert before != _found(sources)


@pytest.mark.parametrize(
    ("sign", "source"),
    [
        (SUBSCRIPT_WRITE, "x[0] = 1"),
        (SUBSCRIPT_WRITE, "x[i, j] += y"),
        (SUBSCRIPT_WRITE, "x[\n    i,\n] = 3"),
        (SUBSCRIPT_WRITE, "x[\n  i: j[0]] = 3"),
        (SUBSCRIPT_WRITE, "if a: b[0] = 1"),
        (SUBSCRIPT_WRITE, "else: b[0] = 1"),
        (SUBSCRIPT_WRITE, "with a, b: c[0] = 1"),
        (SUBSCRIPT_WRITE, "def f(a: list[int] = None): b[0] = 1"),
        (SUBSCRIPT_WRITE, "x[f('(')] = 1"),
        (SUBSCRIPT_WRITE, "x[d['a']] = 1"),
        (CALL_IN_PLACE, "x.add_(1)"),
        (AUGMENTED_WRITE, "x -= 1"),
        (AUGMENTED_WRITE, "x = 0\nfor y in ys:\n    x += f(y)"),
        (AUGMENTED_WRITE, "x = 0\nx = f(x)\nx += 1"),
        (AUGMENTED_WRITE, "x = 2\ny, x = f()\nx **= 2"),
        (AUGMENTED_WRITE, "x = 0\nx += 2 * y"),
        (AUGMENTED_WRITE, "x = 0\nx += [y, z][0]"),
        (AUGMENTED_WRITE, "x = None if y else f(z)\nx += 1"),
        (AUGMENTED_WRITE, "x = float(y) * z\nx += 1"),
        (AUGMENTED_WRITE, "x = 0\nif f(y): x = f(z)\nx += 1"),
        (ITEM_WRITE, "x = [\n    1\n] if y else z\nx[0] = y"),
        (ITEM_WRITE, "x = {'a': y}['a']\nx[0] = y"),
        (ITEM_WRITE, "x = [1]\nfor x in f():\n    x[0] = y"),
        (ITEM_WRITE, "x = {}\nx['a'][0] = y"),
        (ITEM_WRITE, "x = {}\nwith f() as x:\n    x[0] = y"),
        (ITEM_WRITE, "self.x = {}\nself.x = g()\nself.x[0] = y"),
        (ITEM_WRITE, "self.x = 0\nsetattr(self, 'x', y)\nself.x[0] = y"),
        (ITEM_WRITE, "self.x = 0\n@property\ndef x(self): ...\nself.x[0] = y"),
        (ITEM_WRITE, "x = None\nif (x := f()):\n    x[0] = y"),
        (ITEM_MOVED_IN_LOOP, "for i in x:\n    x[i] = y"),
        (ITEM_MOVED_IN_LOOP, "for i in f(\n    x\n):\n\n    # one\n    if i:\n        x[i] += y"),
        (ITEM_MOVED_IN_LOOP, "for i in x: x[i] = y"),
        (ITEM_MOVED_IN_LOOP, "while x:\n    x[\n        i\n    ] = y"),
        (ITEM_MOVED_IN_LOOP, 'for i in x:\n    s = """\none\n"""\n    x[i] = y'),
        (ITEM_MOVED_IN_LOOP, "for i in x:\n    x[0][i] = y"),
        (ITEM_MOVED_IN_LOOP, "for i in x:\n    x[0], y[i] = y"),
        (ITEM_MADE_OF_ITEM, "x[i] = x[j] * y"),
        (ITEM_MADE_OF_ITEM, "self.x[i] = f(\n    ')',\n    self.x [j],\n)"),
        (ITEM_MADE_OF_ITEM, "x[i] = y + \\\n    x[j] * y"),
        (ITEM_MADE_OF_ITEM, "x[i] = f(y,  # (\n    x[j])"),
        (CALL_IN_PLACE, "torch.mul(a, b, out=c)"),
        (CALL_IN_PLACE, "torch.mul(a, b,  # product\n    out = c)"),
        (CALL_IN_PLACE, "F.relu(x, inplace=True)"),
        (LEAF_WORD, "x.requires_grad_()"),
        (LEAF_WORD, "x.requires_grad = True"),
        (LEAF_WORD, "layer. weight"),
        (CONVERTED_PARAMETER, "self.w = nn.Parameter(torch.ones(3)).cuda()"),
        (CONVERTED_PARAMETER, "self.w = (nn.Parameter(torch.ones(3))\n    * 2)"),
        (CONVERTED_PARAMETER, "self.w = 0.1 * (\n    torch.nn.Parameter(torch.ones(3)))"),
        (CONVERTED_PARAMETER, "self.w = Parameter(f(')'), x) / 2"),
        (CONVERTED_PARAMETER, "self.w = Parameter(x  # one)\n) / 2"),
        (PARAMETER_ALIAS, "from torch.nn import Parameter as P"),
        (UPDATE_BY_GRADIENT, "w = w - lr * w . grad"),
        (UPDATE_BY_GRADIENT, "self.w = self.w - lr * self.w.grad"),
        (
            LOOP_OVER_PARAMETERS,
            "for a, b in zip(\n    x.parameters(),\n y.parameters()):\n    b = 1",
        ),
        (EVALUATION, "def test():\n    model.eval()"),
        (EVALUATION, "def f():\n    def test_a():\n        pass\n    model.eval()"),
        (EVALUATION, "def test_a():\n    model.eval()"),
        (EVALUATION, "model.eval()"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = []"),
        (CONTAINER_ON_ATTRIBUTE, "self.x: list[nn.Module] = (\n    nn.Linear(1, 1),)"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = nn.Linear(1, 1),"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = nn.Linear(\n    1, 1\n), 2"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = x, y"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = self.y = {}"),
        (CONTAINER_ON_ATTRIBUTE, "x = [y]\nself.x = x  # one"),
        (CONTAINER_ON_ATTRIBUTE, "def f():\n    return [1]\nself.x = f()"),
        (CONTAINER_ON_ATTRIBUTE, "def g(): ...\n  def f(self):\n    return x\nself.x = self.f()"),
        (CONTAINER_ON_ATTRIBUTE, "if y: self.x = dict(a=b)"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = (list(y))"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = (y + 1) * 2, 3"),
        (CALL_IN_PLACE, "torch.mul(a, b,  # product\n    # and more\n    out = c)"),
        (ITEM_MADE_OF_ITEM, "x[i] = y @ x[j[0]]"),
        (ITEM_MADE_OF_ITEM, "x[i] = x[j[0]] / y"),
        (ITEM_WRITE, "f = '#'; x[i] = y"),
        (ITEM_WRITE, "x[f'{i}'][0] = y"),
        (OPTIMIZER_NAME, "from torch import optim as o"),
        (OPTIMIZER_NAME, "self.gen_optimizer.step()"),
        (OPTIMIZER_NAME, "scaler.step(self.optimizer)"),
        (OPTIMIZER_NAME, "opt.step()"),
    ],
)
def test_signs_are_seen(sign: Pattern, source: str) -> None:
    assert Signs(source.encode()).has(sign)


@pytest.mark.parametrize(
    ("sign", "source"),
    [
        (SUBSCRIPT_WRITE, "def f(a: list[int] = None):"),
        (SUBSCRIPT_WRITE, "    sizes: dict[str, list[int]] = {}"),
        (SUBSCRIPT_WRITE, "options['a'] = 1"),
        (SUBSCRIPT_WRITE, "if x[0] == 1:"),
        (CALL_IN_PLACE, "if a <= b or a >= c: super().__init__()"),
        (CALL_IN_PLACE, "out = layer(x)"),
        (CALL_IN_PLACE, "nn.init.zeros_(layer.weight)"),
        (AUGMENTED_WRITE, "x = 0\nself.y = []\nx += 1\nself.y += [2]"),
        (AUGMENTED_WRITE, "# x += y"),
        (ITEM_WRITE, "x = {}\nx[y] = f(x, y)"),
        (ITEM_WRITE, "def f(\n    x: dict[\n        int, str\n    ] = None,\n): ..."),
        (ITEM_MOVED_IN_LOOP, "for i in x:\n    f(i)\nx[i] = y"),
        (ITEM_MOVED_IN_LOOP, "for i in x:\n    def f(y):\n        x[i] = y"),
        (ITEM_MOVED_IN_LOOP, "for i in x:\n    x[0] = y"),
        (ITEM_MOVED_IN_LOOP, "for i in x:\n    x[i] = 0"),
        (ITEM_MADE_OF_ITEM, "x[i] = f(\n    y\n)\nx[j] = y"),
        (LEAF_WORD, "x.requires_grad_(False)"),
        (CONVERTED_PARAMETER, "self.w = nn.Parameter(torch.ones(3) * (2 - x))\nself.b = 1"),
        (CONVERTED_PARAMETER, "def f(w: nn.Parameter, x): return w * x"),
        (PARAMETER_ALIAS, "from torch.nn import Parameter"),
        (UPDATE_BY_GRADIENT, "torch.no_grad(); x = x.grad_fn; x.gradient"),
        (UPDATE_BY_GRADIENT, "x = y.grad"),
        (LOOP_OVER_PARAMETERS, "def forward(x): optimizer = SGD(model.parameters())"),
        (LOOP_OVER_PARAMETERS, "for p in model.parameters(): p.requires_grad = x"),
        (EVALUATION, "class A:\n    def test_a(self):\n        model.eval()"),
        (EVALUATION, "import pytest\ndef test_a(self):\n    if x:\n        model.eval()"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = nn.Linear(1, 1)\nx = y if self.x == [] else 2"),
        (CALL_IN_PLACE, "# one\nout = layer(x)"),
        (CALL_IN_PLACE, "def add_(x): ..."),
        (AUGMENTED_WRITE, "x += (y,)"),
        (AUGMENTED_WRITE, "x += f'{y}'"),
        (ITEM_WRITE, "x = f('a[0] = {}, b[1] = {}')"),
        (ITEM_WRITE, "# x[0] = y"),
        (ITEM_MADE_OF_ITEM, "x[i] = x[i] + f(y) * 2"),
        (ITEM_MADE_OF_ITEM, "x[i] = x[i].clone()"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = a, b = f(y)"),
        (CONTAINER_ON_ATTRIBUTE, "self.x, self.y = a, b"),
        (CONTAINER_ON_ATTRIBUTE, "self.x = (a + b) * c"),
        (CONTAINER_ON_ATTRIBUTE, "self.x.y = []"),
        (
            CONTAINER_ON_ATTRIBUTE,
            "def f():\n    return x + 1\ndef g():\n    return []\nself.x = f()",
        ),
        (CONTAINER_ON_ATTRIBUTE, "def f(\n    x: torch.Tensor = None,\n): ..."),
        (CONTAINER_ON_ATTRIBUTE, "self.x = x\nself.z = nn.ModuleList([y, y])\nf(a, b.c == [])"),
        (OPTIMIZER_NAME, "# optimized for speed; scheduler.step()"),
    ],
)
def test_signs_are_no_wider_than_they_must_be(sign: Pattern, source: str) -> None:
    assert not Signs(source.encode()).has(sign)


@pytest.mark.parametrize(
    "text",
    [
        *("optim", "step(", "x,#", "x: [", ",a:[", "x[ ", "step( optim.", "]= ", "out=,\n"),
        *("Parameter(", "Parameter()\n", "Parameter(()", "(Parameter()", "parameters("),
        *("    x[i] = y\n", "x[i] = y\n", "x=[];x[i]=", "x += 1,", "x += y\n", "x[i] = x[(\n"),
    ],
)
def test_looking_for_signs_takes_no_longer_on_hostile_text(text: str) -> None:
    signs = Signs((text * 20_000).encode())
    for rule in RULES:
        rule.concerns(signs)


def test_looking_for_signs_takes_no_longer_where_every_line_has_a_name_of_its_own() -> None:
    lines = (f"x{i} = []\nx{i}[i] = y\nx{i} += 1\nself.x = f{i}()\n" for i in range(10_000))
    signs = Signs("".join(lines).encode())
    for rule in RULES:
        rule.concerns(signs)


_STATEMENTS = [
    "model.eval()",
    "model = torch.nn.Linear(3, 2)",
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    "model.head = torch.nn.Linear(3, 2)",
    "model[1] = torch.nn.Linear(3, 2)",
    "model.add_module('head', torch.nn.Linear(3, 2))",
    "setattr(model, 'head', torch.nn.Linear(3, 2))",
    "optimizer.step()",
    "scaler.step(optimizer)",
    "update = optimizer.step; update()",
    "y = model(x)",
    "y = torch.sigmoid(self.layer(x))",
    "y += 1",
    "y.mul_(2)",
    "y[0] = 1",
    "F.relu(y, inplace=True)",
    "y.sum().backward()",
    "helper(y)",
    "return y",
    "z = [model(k) for k in x]",
]
_FRAMES = [
    "def fit(model, optimizer, x, y):\n    {}",
    "def evaluate(model, x):\n    {}",
    "for x in loader:\n    {}",
    "class Net(torch.nn.Module):\n    def forward(self, x):\n        {}",
    "class Test:\n    def test_eval(self, model, x):\n        {}",
    "def run(model, x):\n    while x:\n        {}",
]


@given(
    st.lists(st.sampled_from(_FRAMES), min_size=1, max_size=2),
    st.lists(
        st.lists(st.sampled_from(_STATEMENTS), min_size=2, max_size=7), min_size=2, max_size=2
    ),
)
@settings(max_examples=150, deadline=None)
def test_no_rule_finds_anything_where_it_says_that_it_cannot(
    frames: list[str], bodies: list[list[str]]
) -> None:
    source = "import torch\nimport torch.nn.functional as F\n"
    for frame, body in zip(frames, bodies, strict=False):
        indent = "\n" + " " * _depth(frame)
        lines = [line for line in body if line != "return y" or "def" in frame]
        source += frame.format(indent.join(lines or ["pass"])) + "\n"
    skeleton = Skeleton(source.encode())
    model = ModuleModel(skeleton.tree, source.encode(), outline=skeleton)
    for function in model.functions():
        for reference in RULES:
            rule = reference.load()
            if not rule.may_find(function):
                assert not list(rule.check(function)), (reference.code, source)


def _depth(frame: str) -> int:
    return len(frame.rpartition("\n")[2]) - len("{}")


_WRITES = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn import Parameter as P

class Scale(nn.Module):
    gain = nn.Parameter(torch.ones(3))

    def __init__(self):
        super().__init__()
        self.named = nn.Parameter(torch.ones(3))
        self.register_parameter("other", P(torch.ones(3)))
        self.all = [self.named, self.other]

    @property
    def alias(self):
        return self.named

    def forward(self, x):
        {statement}
"""


@pytest.mark.parametrize(
    "statement",
    [
        "self.named.add_(1)",
        "self.other += 1",
        "self.gain[0] = 1",
        "self.alias.mul_(2)",
        "w = self.named; w.add_(1)",
        "a, b = self.named, x; a.add_(1)",
        "for w in self.all: w += 1",
        "for _, w in enumerate(list(self.parameters())): w += 1",
        "d = {'w': self.named}; d['w'].add_(1)",
        "[w.add_(1) for w in self.parameters()]",
        "(w := self.named).add_(1); w += 1",
        "w = self.named if len(x) else self.other; w += 1",
        "w = self.named.view(-1).t(); w += 1",
        "ws = [self.named] + [self.other]; ws[0].add_(1)",
        "torch.relu_(self.named)",
        "F.relu(self.named, inplace=True)",
        "torch.add(x, 1, out=self.named)",
        "f = lambda: self.named.add_(1)",
        "w = torch.zeros(3, requires_grad=True); w += 1",
        "w = torch.zeros(3); v = w; v.requires_grad_(); w += 1",
    ],
)
def test_what_is_written_to_is_followed_back_to_a_leaf(statement: str) -> None:
    source = _WRITES.format(statement=statement).encode()
    skeleton = Skeleton(source)
    model = ModuleModel(skeleton.tree, source, outline=skeleton)
    (rule,) = load_rules(["GCS101"])
    last = list(model.functions())[-1]
    assert Part.WRITE in last.scope.parts
    assert rule.may_find(last)


@pytest.mark.parametrize(
    "statement",
    [
        "x += self.named",
        "y = x + self.named; y += 1",
        "y = F.linear(x, self.named); y += 1",
        "self.named.data.add_(1)",
        "nn.init.zeros_(self.named)",
        "count = 0; count += 1",
    ],
)
def test_what_is_no_leaf_is_not_read(statement: str) -> None:
    source = _WRITES.format(statement=statement).encode()
    skeleton = Skeleton(source)
    model = ModuleModel(skeleton.tree, source, outline=skeleton)
    (rule,) = load_rules(["GCS101"])
    assert not rule.may_find(list(model.functions())[-1])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("h = f(x)\nh += 1", False),
        ("h = f(x)\ny = g(h)\nh += 1", True),
        ("h = x.view(3)\nh += 1", True),
        ("h = f(x)\nh += h * h", True),
        ("h = f(x)\nfor i in x:\n    h += 1\n    y = h * 2", True),
        ("for i in x:\n    h = f(x)\n    h += 1", False),
        ("for i in x:\n    h = f(x)\n    h += 1\n    y = h * 2", False),
        ("if x:\n    h = f(x)\nh += 1", True),
        ("if x:\n    h = f(x)\nelse:\n    h = x\nh += 1", True),
        ("h = f(x)\nwith a:\n    h += 1", False),
    ],
)
def test_a_name_that_nobody_mentions_was_not_saved(body: str, *, expected: bool) -> None:
    statements = ast.parse(body).body
    (write,) = [
        Write(node.target, node)
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.AugAssign)
    ]
    assert EarlierUse(statements).is_possible(write) is expected


_ROUTES = {
    "the parameters of a layer that has no name": """
import torch
from torch import nn

def make():
    params = nn.Linear(2, 2).parameters()
    print(sum(p.numel() for p in params))
    return torch.optim.SGD(params, lr=0.1)
""",
    "a method kept as an attribute": """
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.update = self.advance

    def advance(self, x):
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self, loader):
        total = 0.0
        for x in loader:
            total += self.update(x)
        return total
""",
    "a closure that the function around binds": """
import torch

def fit(model, optimizer, loader):
    def advance(x):
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        return loss

    update = advance
    def epoch():
        total = 0.0
        for x in loader:
            total += update(x)
        return total
    return epoch()
""",
    "a lambda at the top level": """
import torch

def advance(model, optimizer, x):
    loss = model(x).mean()
    loss.backward()
    optimizer.step()

update = lambda model, optimizer, x: advance(model, optimizer, x)

def fit(model, optimizer, loader):
    for x in loader:
        update(model, optimizer, x)
""",
    "a function that gives a function": """
import torch

def make(model, optimizer):
    def advance(x):
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        return loss
    return advance

def fit(model, optimizer, loader):
    advance = make(model, optimizer)
    losses = []
    for x in loader:
        losses.append(advance(x))
    return losses
""",
    "functions in a list": """
import torch

def advance(model, optimizer, x):
    loss = model(x).mean()
    loss.backward()
    optimizer.step()

stages = []
stages.append(advance)

def fit(model, optimizer, loader):
    for x in loader:
        for stage in stages:
            stage(model, optimizer, x)
""",
    "an object that is called": """
import torch

class Update:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def __call__(self, x):
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()
        return loss

class Trainer:
    def __init__(self, model, optimizer):
        self.update = Update(model, optimizer)

    def fit(self, loader):
        for x in loader:
            self.update(x)
""",
    "a base class": """
import torch

class Base:
    def advance(self, x):
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()
        return loss

class Trainer(Base):
    def fit(self, loader):
        losses = []
        for x in loader:
            losses.append(super().advance(x))
        return losses
""",
    "a global name": """
import torch

def prepare():
    global weight
    weight = torch.zeros(3, requires_grad=True)

def move():
    weight.add_(1)

prepare()
move()
""",
    "a leaf of a class and its base": """
import torch

class Base:
    weight = torch.nn.Parameter(torch.zeros(3))

class Shift(Base):
    def move(self):
        self.weight.add_(1)
""",
    "a leaf under a name in a string": """
import torch
from torch import nn

class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_parameter("scale", nn.Parameter(torch.ones(3)))

    def forward(self, x):
        self.scale.mul_(2)
        return x * self.scale
""",
    "leaves that another method adds": """
import torch
from torch import nn

class Shift:
    def __init__(self):
        self.scales = []

    def add(self):
        self.scales.append(nn.Parameter(torch.ones(3)))

    def move(self):
        for scale in self.scales:
            scale.mul_(2)
""",
    "items of what the function around has made": """
import torch
from torch import nn

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x, state):
        out = torch.zeros(len(x), 3)

        def run(state):
            for t in range(len(x)):
                state = self.cell(x[t], state)
                out[t] = state
            return out
        return run(state)
""",
    "items in the else of a loop": """
import torch
from torch import nn

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x, state):
        out = torch.zeros(len(x), 3)
        for t in range(len(x)):
            for part in x[t]:
                state = self.cell(part, state)
            else:
                out[t] = state
        return out
""",
    "an argument that is called like a package": """
import torch
import numpy as np
from torch import nn

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, np, x, state):
        out = np.clone(x)
        for t in range(len(x)):
            state = self.cell(x[t], state)
            out[t] = state
        return out
""",
    "a slice that a layer of a name saves": """
import torch
from torch import nn

class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, 3)

    def forward(self, x):
        mix = nn.Linear(3, 3)
        out = torch.zeros(4, 3)
        out[0] = self.mix(x)
        out[1] = self.mix(out[0])
        out[2] = mix(out[1])
        return out
""",
    "an optimizer that only its annotation tells": """
import torch

def fit(model, loader, sgd: torch.optim.SGD):
    for x in loader:
        model(x).mean().backward()
        sgd.step()
""",
    "an optimizer under a name of its own": """
import torch
from torch.optim import SGD as Rule

class Trainer:
    def __init__(self, model):
        self.model = model
        self.rule = Rule(model.parameters(), lr=0.1)

    def advance(self, x):
        self.rule.zero_grad()
        self.model(x).mean().backward()
        self.rule.step()
        self.rule.step()

    def fit(self, loader):
        for x in loader:
            self.advance(x)
""",
    "a scheduler beside an optimizer of another function": """
import torch

def advance(model, optimizer, x):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()

def fit(model, optimizer, scheduler, loader):
    for x in loader:
        scheduler.step()
        advance(model, optimizer, x)
""",
    "backward under another name": """
import torch
from torch.autograd import backward as differentiate

def test(loss):
    loss.backward()

def fit(model, optimizer, loader):
    losses = []
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        differentiate(loss)
        optimizer.step()
        losses.append(loss)
    print(losses)

def advance(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).mean()
    differentiate(loss)
    optimizer.step()
    return loss

def follow(model, optimizer, loader):
    losses = []
    for x in loader:
        losses.append(advance(model, optimizer, x))
    print(losses)
""",
    "a loss that a third function passes on": """
import torch

def advance(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    return loss

def pass_on(model, optimizer, x):
    return {"loss": advance(model, optimizer, x)}

def fit(model, optimizer, loader):
    total = 0.0
    for x in loader:
        total += pass_on(model, optimizer, x)["loss"]
    return total
""",
    "a loss that another method keeps": """
import torch

class Trainer:
    def advance(self, x):
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()
        self.loss = loss

    def fit(self, loader):
        losses = []
        for x in loader:
            self.advance(x)
            losses.append(self.loss)
        return losses
""",
}


@pytest.mark.parametrize("source", _ROUTES.values(), ids=_ROUTES.keys())
def test_what_reaches_a_function_indirectly_is_not_filtered_out(
    source: str, request: pytest.FixtureRequest
) -> None:
    sources = [source, _inside(source, function=True), _inside(source, function=False)]
    filtered = _found(sources)
    request.getfixturevalue("unfiltered")
    assert filtered == _found(sources)


def test_most_indirect_routes_are_followed_at_all() -> None:
    assert sum(map(bool, _found(list(_ROUTES.values())))) > len(_ROUTES) // 2
