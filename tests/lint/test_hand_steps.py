"""Steps by hand on gradients that a loop adds up, and loops that see to them."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = "import torch\nimport torch.nn.functional as F\n"

_STEPS = [
    "w -= 0.1 * w.grad",
    "w.sub_(0.1 * w.grad)",
    "w.add_(w.grad, alpha=-0.1)",
    "w.data -= 0.1 * w.grad.data",
    "w.data = w.data - 0.1 * w.grad",
    "w.data.add_(-0.1 * w.grad.sign())",
    "for p in [w]:\n            p.data -= 0.1 * p.grad",
    "for name, p in zip('w', [w]):\n            p.data.sub_(p.grad * 0.1)",
]

_ZEROING = [
    "w.grad.zero_()",
    "w.grad.data.zero_()",
    "w.grad = None",
    "w.grad *= 0",
    "w.grad[:] = 0",
    "w.grad.fill_(0)",
    "del w.grad",
    "for p in [w]:\n            p.grad = None",
    "reset_gradients([w])",
    "torch.nn.Module.zero_grad(model)",
]

_LOOP = """
def fit(x, y, model):
    w = torch.randn(3, 1, requires_grad=True)
    for i in range(100):
        {first}
        loss = ((x @ w - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            {step}
    return w
"""

_OWNERS = [
    "opt.zero_grad()",
    "self.model.zero_grad()",
    "self.optimizer.step()",
    "own.zero_grad(set_to_none=True)",
]

_OTHERS_ARE_ZEROED = """
class Attack:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def move(self, delta, grad, rate):
        delta.data = (delta.data + rate * grad.sign()).clamp(-1, 1)

    def start(self, x):
        delta = torch.zeros_like(x).uniform_(-1, 1)
        delta.requires_grad = True
        return delta

    def __call__(self, x, y, opt):
        own = torch.optim.SGD(self.model.parameters(), 0.1)
        delta = self.start(x)
        for _ in range(10):
            {zeroing}
            loss = F.cross_entropy(self.model(x + delta), y)
            loss.backward()
            grad = delta.grad.detach()
            {step}
        return delta.detach()
"""

_CORRECT = {
    "the optimizer of the tensor": """
def attack(model, x, y):
    delta = torch.zeros_like(x, requires_grad=True)
    opt = torch.optim.SGD([delta], 0.1)
    for _ in range(9):
        opt.zero_grad()
        F.cross_entropy(model(x + delta), y).backward()
        grad = delta.grad.detach()
        delta.data += 0.1 * grad.sign()
""",
    "the model has the tensor": """
def attack(model, x, y):
    delta = torch.nn.Parameter(torch.zeros(3))
    model.delta = delta
    for _ in range(9):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        delta.data += 0.1 * delta.grad.sign()
""",
    "the model is made of the tensor": """
def attack(x, y):
    delta = torch.nn.Parameter(torch.zeros(3))
    model = Shifted(delta)
    for _ in range(9):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        delta.data += 0.1 * delta.grad.sign()
""",
    "once": """
def attack(model, x, y):
    x = x.clone().requires_grad_()
    F.cross_entropy(model(x), y).backward()
    x.data += 0.1 * x.grad.sign()
    return x
""",
    "each input anew": """
def attack(model, loader):
    for x, y in loader:
        x.requires_grad = True
        F.cross_entropy(model(x), y).backward()
        yield x.data.add_(0.1 * x.grad.sign())
""",
    "a leaf for each iteration": """
def attack(model, loader):
    for x, y in loader:
        delta = torch.zeros(3, requires_grad=True)
        F.cross_entropy(model(x + delta), y).backward()
        delta.data += 0.1 * delta.grad.sign()
""",
    "a gradient that is asked for": """
def attack(model, x, y):
    F.cross_entropy(model(x), y).backward()
    delta = torch.zeros(3, requires_grad=True)
    for _ in range(9):
        loss = F.cross_entropy(model(x + delta), y)
        (gradient,) = torch.autograd.grad(loss, [delta])
        delta.data += 0.1 * gradient.sign()
""",
    "an optimizer": """
def train(model, opt, loader):
    for x in loader:
        opt.zero_grad()
        model(x).sum().backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad
""",
    "the loop ends": """
def attack(model, x, y):
    delta = torch.zeros(3, requires_grad=True)
    for _ in range(9):
        F.cross_entropy(model(x + delta), y).backward()
        delta.data += 0.1 * delta.grad.sign()
        break
""",
    "norms alone": """
def norms(model, loader):
    total = torch.zeros(())
    for x in loader:
        model(x).sum().backward()
        for p in model.parameters():
            total += p.grad.norm()
""",
}


def _found(source: str) -> list[tuple[str, int]]:
    source = _HEAD + source
    compile(source, "sample.py", "exec")
    found = lint_source(source.encode(), "sample.py")
    return [(f.code, f.location.line) for f in found if f.location is not None]


@pytest.mark.parametrize("step", _STEPS)
def test_steps_that_use_a_sum(step: str) -> None:
    step = step.replace("\n            ", "\n                ")
    line = 12 if step.startswith("for") else 11
    assert _found(_LOOP.format(first="pass", step=step)) == [("GCS301", line)]


@pytest.mark.parametrize("step", ["self.move(delta, grad, 0.1)", "delta.data += 0.1 * grad.sign()"])
@pytest.mark.parametrize("zeroing", _OWNERS)
def test_who_was_there_before_the_tensor_does_not_clear_it(zeroing: str, step: str) -> None:
    found = _found(_OTHERS_ARE_ZEROED.format(zeroing=zeroing, step=step))
    assert ("GCS301", 24) in found


@pytest.mark.parametrize("zeroing", _ZEROING)
def test_a_loop_that_sees_to_it(zeroing: str) -> None:
    assert _found(_LOOP.format(first=zeroing, step=_STEPS[0])) == []


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_what_is_right(source: str) -> None:
    assert _found(source) == []
