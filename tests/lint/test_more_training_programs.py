"""Mistakes of training loops, written as people write them, and what is right beside each."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = "import torch\nimport torch.nn.functional as F\n"

_LOOP = """
def train(model, loader, opt):
    kept = []
    for i, x in enumerate(loader):
        opt.zero_grad()
        out = model(x)
        loss = out.mean()
        loss.backward()
        opt.step()
        kept.append({what})
    return kept
"""

_WRAPPER = """
class Update:
    def __init__(self, optimizer, model):
        self.optimizer, self.model = optimizer, model
    def step(self, loss):
{first}
        loss.backward()
        self.optimizer.step()
def train(model, loader, optimizer):
    update = Update(optimizer, model)
    for x in loader:
        update.step(model(x).mean())
"""

_CLOSURE = """
def fit(x):
    w = torch.zeros(3, requires_grad=True)
    opt = torch.optim.LBFGS([w])
    def closure():
        opt.zero_grad()
        loss = ((w - x) ** 2).sum()
{differentiate}
        return loss
    for _ in range(10):
        opt.step(closure)
    return w.detach()
"""


def _codes(source: str) -> list[str]:
    source = _HEAD + source
    compile(source, "train.py", "exec")
    return [finding.code for finding in lint_source(source.encode(), "train.py")]


@pytest.mark.parametrize(
    "what", ["out", "out.cpu()", "(i, out.cpu())", "out.to('cpu')", "out.float()", "{'out': out}"]
)
def test_outputs_that_are_kept_with_their_graph(what: str) -> None:
    assert _codes(_LOOP.format(what=what)) == ["GCS201"]


@pytest.mark.parametrize(
    "what",
    [
        "out.detach().cpu()",
        "out.cpu().detach()",
        "out.cpu().tolist()",
        "out.argmax(1).cpu()",
        "out.max(1)[1].cpu()",
        "(i, loss.item())",
        "float(out.cpu())",
    ],
)
def test_outputs_that_are_kept_without_a_graph(what: str) -> None:
    assert _codes(_LOOP.format(what=what)) == []


@pytest.mark.parametrize(
    ("differentiate", "codes"),
    [
        ("        loss.backward()", []),
        ("        w.grad, = torch.autograd.grad(loss, [w])", []),
        ("        torch.autograd.backward(loss)", []),
        ("        pass", ["GCS303"]),
        ("        print(loss.item())", ["GCS303"]),
    ],
)
def test_a_closure_must_differentiate(differentiate: str, codes: list[str]) -> None:
    assert _codes(_CLOSURE.format(differentiate=differentiate)) == codes


@pytest.mark.parametrize(
    ("first", "codes"),
    [
        ("        self.optimizer.zero_grad()", []),
        ("        self.model.zero_grad()", []),
        ("        pass", ["GCS301"]),
    ],
)
def test_a_step_of_an_object_of_the_file_is_looked_into(first: str, codes: list[str]) -> None:
    assert _codes(_WRAPPER.format(first=first)) == codes


_PENALTY = """
def penalty(critic, real, fake):
    mixed = (real + fake).requires_grad_(True)
    out = critic(mixed)
    slope = torch.autograd.grad(out, mixed, torch.ones_like(out){options})[0]
    return ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
def train(critic, generator, loader):
    opt = torch.optim.Adam(critic.parameters())
    for real in loader:
        fake = generator(torch.randn(len(real), 8)).detach()
        loss = {loss}
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    "loss",
    [
        "critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)",
        "critic(fake).mean() + penalty(critic, real, fake) * 10 - critic(real).mean()",
        "critic(fake).mean() + penalty(critic, real, fake)",
    ],
)
def test_a_penalty_that_another_function_returns(loss: str) -> None:
    assert _codes(_PENALTY.format(options="", loss=loss)) == ["GCS401"]
    assert _codes(_PENALTY.format(options=", create_graph=True", loss=loss)) == []


def test_a_call_that_is_no_term_of_the_loss() -> None:
    loss = "critic(fake).mean() * (1 + penalty(critic, real, fake))"
    assert _codes(_PENALTY.format(options="", loss=loss)) == []


_DISTILLATION = """
def distil(student, teacher, loader, opt, T=4.0{more}):
    for x, y in loader:
        opt.zero_grad()
        with torch.no_grad():
            soft = F.softmax(teacher(x) / T, dim=1)
{student}
        F.kl_div(F.log_softmax(out / {by}, dim=1), soft, reduction="batchmean").backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("student", "by", "more", "codes"),
    [
        ("            out = student(x)", "T", "", ["GCS402"]),
        ("            out = student(x)", "gain", ", gain: float = 1", ["GCS402"]),
        ("        out = student(x)", "T", "", []),
        # Other files may give a learned tensor for these.
        ("            out = student(x)", "gain", ", gain=1.0", []),
        ("            out = student(x)", "gain", ", gain: torch.Tensor = 1.0", []),
    ],
)
def test_numbers_of_a_signature_have_no_graph(
    student: str, by: str, more: str, codes: list[str]
) -> None:
    assert _codes(_DISTILLATION.format(student=student, by=by, more=more)) == codes
