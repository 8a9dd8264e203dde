"""What people hand over that no gradient checker expects: a clear verdict or a clear refusal."""

from __future__ import annotations

import collections
import types
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import Function

from gradcheck_suite._torch_compat import has_gradient_hooks
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification import check_gradients

D = torch.float64
ROWS = torch.tensor([1, 2, 1])


class SparseRows(Function):
    """Picks rows; its gradient is sparse, for a dense table."""

    factor = 1.0

    @staticmethod
    def forward(ctx, table, rows):
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table[rows]

    @staticmethod
    def backward(ctx, g):
        (rows,) = ctx.saved_tensors
        g = SparseRows.factor * g
        return torch.sparse_coo_tensor(rows[None], g, ctx.shape, check_invariants=True), None


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch 2.12, once for a process
def test_a_sparse_gradient_of_a_dense_input_passes(randn):
    report = check_gradients(SparseRows, (randn(5, 3), ROWS))
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}
    assert "strided `table`: backward gives a sparse gradient" in report.not_covered


def test_a_wrong_sparse_gradient_is_named_with_its_entry(randn, monkeypatch):
    monkeypatch.setattr(SparseRows, "factor", 2.0)
    (finding,) = check_gradients(SparseRows, (randn(5, 3), ROWS), full=True).findings
    assert "is 2 times the numeric one" in finding.message
    assert "6 of 15 entries are wrong" in finding.message


def test_a_sparse_embedding_passes_in_every_mode():
    module = nn.Embedding(6, 3, sparse=True, dtype=D)
    report = check_gradients(
        module, (ROWS,), full=True, order=2, batched=True, forward_mode=True, variations=()
    )
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


class OneEntry(Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.exp()

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        grad = g * z.exp().conj()
        grad[3] = torch.complex(grad[3].real, 2 * grad[3].imag)
        return grad


@pytest.mark.parametrize("full", [False, True])
def test_a_complex_entry_is_named_by_its_part(randn, full):
    z = torch.view_as_complex(randn(5, 2).detach()).requires_grad_()
    report = check_gradients(OneEntry, z, full=full, variations=())
    (finding,) = report.findings
    assert "`z[3].imag`" in finding.message
    assert finding.evidence["entry"]["input_index"] == [3]
    assert finding.evidence["shape"] == [5]
    if full:
        (verdict,) = report.verdicts
        assert verdict.evidence["jacobian"]["worst"]["input_index"] == [3]


def test_only_stages_that_were_asked_for_are_left_out_by_the_time_limit(randn):
    x = randn(3)
    left = check_gradients(torch.sin, x, time_limit=1e-9, variations=(), order=1).not_covered
    assert left == ("contract of backward: the time limit of 1e-09 s was reached",)
    asked = {"full": True, "forward_mode": True, "batched": True, "compiled": True}
    left = check_gradients(torch.sin, x, time_limit=1e-9, **asked).not_covered
    assert [line.split(":")[0] for line in left] == [
        "contract of backward",
        "variations of the inputs",
        "order 2",
        "whole Jacobian",
        "forward mode",
        "batched gradients",
        "compiled code",
    ]


class Spoils(Function):
    """Multiplies what forward saved in place: right once for each graph."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return ctx.slope.mul_(g)


def test_a_backward_that_changes_what_forward_saved_is_found(randn):
    report = check_gradients(lambda x: Spoils.apply(x) * 2, randn(4), order=1)
    (finding,) = report.findings
    assert finding.code == "GCS603"
    assert finding.message.startswith(
        "Spoils.backward gives another gradient when it is run again on the same graph"
    )
    assert finding.location.function.endswith("Spoils.backward") or finding.location.line


REFUSED = {
    "reentrant checkpointing": (
        lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True),
        lambda: torch.ones(3, dtype=D, requires_grad=True),
        r"uses reentrant checkpointing, .* use_reentrant=False",
    ),
    "meta input": (
        torch.sin,
        lambda: torch.empty(3, device="meta", requires_grad=True),
        r"input `inputs\[0\]` is on the meta device",
    ),
    "meta module": (
        nn.Linear(3, 2, device="meta"),
        lambda: torch.ones(4, 3),
        "parameter `weight` is on the meta device",
    ),
    "nested tensor": (
        torch.sin,
        lambda: torch.nested.nested_tensor(
            [torch.ones(2, 3), torch.ones(4, 3)], requires_grad=True
        ),
        "is a nested tensor, which can't be checked",
    ),
    "DataParallel": (
        nn.DataParallel(nn.Linear(3, 2)),
        lambda: torch.ones(4, 3),
        r"check the module that it wraps, its attribute \.module",
    ),
    "a generator": (
        lambda x: (part for part in x),
        lambda: torch.ones(3, requires_grad=True),
        "returned generator.*, which holds no tensor",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradient_to_measure_is_refused(name):
    function, inputs, words = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are called a prototype
        given = inputs()
        with pytest.raises(UsageError, match=words):
            check_gradients(function, given)


def test_a_list_that_holds_itself_is_refused(randn):
    loop = [randn(3)]
    loop.append(loop)
    with pytest.raises(UsageError, match=r"`loop\[1\]` is a list that holds itself"):
        check_gradients(lambda loop: loop[0].sin(), (loop,))


class Refuses(torch.Tensor):
    """A subclass that can't be asked whether its values are finite."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.isfinite:
            raise TypeError("unreadable")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_that_cannot_be_read_are_refused_or_not_covered(randn):
    strange = torch.ones(3).as_subclass(Refuses).requires_grad_()
    with pytest.raises(UsageError, match=r"`inputs\[0\]` is a Refuses, whose values can't be read"):
        check_gradients(torch.sin, strange)
    report = check_gradients(lambda x: x.sin().as_subclass(Refuses), randn(3))
    assert [verdict.status for verdict in report.verdicts] == ["not covered"]
    assert report.not_covered[0].startswith("output `output` is a Refuses")


def test_hooks_on_the_users_own_tensors_are_told(randn):
    module = nn.Linear(3, 2, dtype=D)
    module.weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    x = randn(4, 3)
    x.register_hook(lambda grad: grad * 2)
    assert has_gradient_hooks(x)
    assert not has_gradient_hooks(module.bias)
    assert not has_gradient_hooks(types.SimpleNamespace())
    report = check_gradients(module, x, variations=())
    assert report.findings == ()
    told = [line.split("`")[1] for line in report.not_covered if line.startswith("the hooks on")]
    assert told == ["input", "weight"]


def test_a_hook_within_the_function_is_part_of_it(randn):
    def hooked(x):
        y = x.sin()
        if y.requires_grad:
            y.register_hook(lambda grad: grad * 2)
        return y * 3

    (finding,) = check_gradients(hooked, randn(3), variations=()).findings
    assert "is 2 times the numeric one" in finding.message


def test_a_scripted_module_is_checked_for_its_inputs(randn):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        scripted = torch.jit.script(nn.Linear(3, 2, dtype=D))
    report = check_gradients(scripted, randn(4, 3), variations=())
    assert report.findings == ()
    assert [verdict.input for verdict in report.verdicts] == ["input"]
    assert "the parameters of RecursiveScriptModule were held constant" in report.not_covered[0]


def test_containers_that_answer_anything_are_taken_apart(randn):
    class Result(collections.OrderedDict):
        def __getattr__(self, name):
            return self[name]

    report = check_gradients(lambda x: Result(loss=x.sum(), logits=x.sin()), randn(3))
    assert [verdict.output for verdict in report.verdicts] == ["output['loss']", "output['logits']"]


@pytest.mark.parametrize(
    "function",
    [
        torch.vmap(lambda row: row.sin().sum()),
        torch.func.grad(lambda y: y.sin().sum()),
        lambda x: torch.autograd.grad((x**3).sum(), x, create_graph=True)[0],
        lambda x: (x, x[1:], x.t()),
        lambda x: (x.sin(), None, 3, "text"),
        lambda x: x * float(torch.rand(())),
    ],
    ids=["vmap", "func.grad", "autograd.grad", "views of the input", "non-tensors", "random"],
)
def test_unusual_functions_pass(randn, function):
    report = check_gradients(function, randn(3, 3), variations=())
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_torchs_own_functions_are_called_as_the_user_calls_them(randn):
    assert check_gradients(torch.sin, randn(2), variations=()).summary["target"] == "torch.sin"
