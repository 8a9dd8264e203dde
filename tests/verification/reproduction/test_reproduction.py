"""A failing check as a script of its own, which plain torch runs."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Report
from gradcheck_suite.verification.check import check_gradients
from gradcheck_suite.verification.localization.search import localize
from tests import warm_python

SCALE = 2.0


def scaled(tensor):
    return tensor * SCALE


class HalfForWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return scaled(x * weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return scaled(g * weight), (g * x).sum(0)


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x * 1.0

    @staticmethod
    def backward(ctx, g):  # noqa: ARG004
        return g.clamp(-0.1, 0.1)


class SavesRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        root = torch.exp(0.5 * x)
        ctx.save_for_backward(root)
        return root * root

    @staticmethod
    def backward(ctx, g):
        (root,) = ctx.saved_tensors
        return g * root * root


class Unconjugated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z * w

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return g * w, g * z


class Counts(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x * 2.0

    @staticmethod
    def backward(ctx, g):  # noqa: ARG004
        Counts.calls += 1
        return g * 2.0 * (1.0 + Counts.calls % 2)


class WithCut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.scale = 0.5
        self.act = torch.tanh
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, *, mask=None):
        made = self.first(x) * self.act(self.first(x)).detach() * self.scale + self.shift
        return made if mask is None else made * mask


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU())
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x):
        return HalfForWeight.apply(self.blocks(x), self.weight).square().mean()


def nested(batch, how):
    (x,) = batch["images"]
    return {how: x * x.detach()}


def drawn(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


CASES = {
    "function": (HalfForWeight, (drawn(5, 3), drawn(3)), "GCS601"),
    "complex": (Unconjugated, (drawn(4, dtype=torch.cdouble), drawn(4, dtype=torch.cdouble)), ""),
    "not linear": (Clamped, drawn(4), "GCS610"),
    "order 2": (SavesRoot, drawn(4), "GCS602"),
    "not the same twice": (Counts, drawn(4), "GCS603"),
    "module": (WithCut().double(), ((drawn(2, 3),)), "GCS601"),
    "module in float32": (WithCut(), (drawn(2, 3, dtype=torch.float32),), "GCS601"),
    "deep module": (Deep(), (drawn(4, 6, dtype=torch.float32),), "GCS601"),
    "nested": (nested, ({"images": (drawn(2, 3),)}, "made"), "GCS601"),
    "partial": (functools.partial(nested, how="made"), ({"images": (drawn(2, 3),)},), "GCS601"),
}


def run(path):
    return warm_python.run(["-P", path], cwd=path.parent, env={"PATH": "", "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(every=5)
def test_the_script_shows_it_with_plain_torch(name, tmp_path):
    target, inputs, code = CASES[name]
    report = check_gradients(target, inputs)
    path = tmp_path / "shows_it.py"
    report.save_reproduction(path)

    text = path.read_text(encoding="utf-8")
    assert code in text
    assert "import gradcheck_suite" not in text
    done = run(path)
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "WRONG" in done.stdout


def test_inputs_are_made_small_and_round(tmp_path):
    report = check_gradients(HalfForWeight, (drawn(50, 30), drawn(30)))
    path = tmp_path / "small.py"
    report.save_reproduction(path)
    text = path.read_text(encoding="utf-8")
    assert "weight = torch.tensor([" in text
    assert text.count(".requires_grad_()") == 1
    assert len(text) < 5000
    assert "SCALE = 2.0" in text
    assert "def scaled(tensor):" in text


def test_the_mended_script_exits_with_zero(tmp_path):
    path = tmp_path / "mended.py"
    check_gradients(HalfForWeight, (drawn(5, 3), drawn(3))).save_reproduction(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("(g * x).sum(0)", "scaled(g * x).sum(0)"), encoding="utf-8")
    done = run(path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all right" in done.stdout


def test_what_needs_the_suite_says_so(tmp_path):
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return x * 2.0

        @staticmethod
        def backward(ctx, g):  # noqa: ARG004
            return g.view(-1).view(g.shape) * 2.0

    report = check_gradients(Raises, drawn(3, 4))
    assert [finding.code for finding in report.findings] == ["GCS609"]
    path = tmp_path / "with_suite.py"
    report.save_reproduction(path)
    assert "import gradcheck_suite" in path.read_text(encoding="utf-8")


def test_localize_writes_the_call_that_is_wrong(tmp_path):
    report = localize(Deep(), drawn(4, 6, dtype=torch.float32))
    path = tmp_path / "call.py"
    report.save_reproduction(path)
    text = path.read_text(encoding="utf-8")
    assert "HalfForWeight.apply" in text
    assert "LayerNorm" not in text
    assert run(path).returncode == 1


class Opaque:
    """No plain value."""


def with_opaque(x, known):
    del known
    return x * x.detach()


def test_what_is_no_plain_value_is_refused(tmp_path):
    report = check_gradients(with_opaque, (drawn(3), Opaque()))
    with pytest.raises(UsageError, match=r"input 1 of `with_opaque` is an object of type Opaque"):
        report.save_reproduction(tmp_path / "no.py")
    assert not (tmp_path / "no.py").exists()


def test_a_lambda_is_refused(tmp_path):
    report = check_gradients(lambda x: x * x.detach(), drawn(3))
    with pytest.raises(UsageError, match="define it with `def`"):
        report.save_reproduction(tmp_path / "no.py")


def test_what_stays_too_large_is_refused(tmp_path):
    large = torch.ones(5000, dtype=torch.float64)

    def target(x):
        return x * x.detach() * large[:3]

    report = check_gradients(target, drawn(3))
    with pytest.raises(UsageError, match=r"more than 4096 numbers"):
        report.save_reproduction(tmp_path / "no.py")


@pytest.mark.slow
def test_hooks_are_refused(tmp_path):
    module = WithCut().double()
    module.register_forward_hook(lambda *_: None)
    report = check_gradients(module, drawn(2, 3))
    with pytest.raises(UsageError, match="has hooks"):
        report.save_reproduction(tmp_path / "no.py")


def test_where_nothing_is_wrong_there_is_nothing_to_show(tmp_path):
    for report in (check_gradients(torch.sin, drawn(3)), Report(tool="gradcheck-suite audit")):
        with pytest.raises(UsageError, match="nothing to reproduce"):
            report.save_reproduction(tmp_path / "no.py")


def test_a_path_that_cannot_be_written_is_told(tmp_path):
    report = check_gradients(Clamped, drawn(4))
    with pytest.raises(UsageError, match="cannot write the script"):
        report.save_reproduction(tmp_path / "missing" / "x.py")


def test_a_report_can_be_copied_and_sent():
    report = check_gradients(Clamped, drawn(4))
    assert copy.deepcopy(report) == report
    assert pickle.loads(pickle.dumps(report)).reproduction is None
