from __future__ import annotations

import re

import pytest
import torch

from gradcheck_suite.errors import UsageError
from pytest_gradcheck_suite.snapshots import (
    differences,
    read_snapshot,
    take_snapshot,
    write_snapshot,
)


class Net(torch.nn.Module):
    def __init__(self, *, name="out", factor=1.0, bias=True):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.name = name
        self.factor = factor
        setattr(self, name, torch.nn.Linear(8, 3, bias=bias))

    def forward(self, x):
        hidden = self.norm(self.inner(x)).tanh()
        return getattr(self, self.name)(hidden) * self.factor


def points(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 6, generator=generator).to(dtype).requires_grad_()


def snapshot(module=None, inputs=None, **options):
    inputs = points() if inputs is None else inputs
    return take_snapshot(module or Net(), inputs, kwargs=None, **{"seed": 0, **options})


def told(before, after):
    return {change.name: change.what for change in differences(before, after)}


class TestComparison:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_another_type_is_no_change(self, dtype):
        other = snapshot(Net().to(dtype), points(dtype))

        assert told(snapshot(), other) == {}
        assert told(other, snapshot()) == {}

    def test_another_order_of_summation_is_no_change(self):
        class Summed(Net):
            def forward(self, x):
                flat = sum(
                    (x[:, i : i + 1] * self.inner.weight[:, i] for i in reversed(range(6))),
                    self.inner.bias,
                )
                return self.out(self.norm(flat).tanh())

        assert told(snapshot(), snapshot(Summed())) == {}

    def test_a_factor_and_a_flipped_sign(self):
        # The bias before batch norm has a gradient of rounding noise alone: nothing to scale.
        doubled = told(snapshot(), snapshot(Net(factor=1.01)))
        flipped = told(snapshot(), snapshot(Net(factor=-1.0)))

        assert doubled["inputs[0]"] == "has 1.01 times the gradient that it had"
        assert flipped["out.weight"] == "has its sign flipped"
        assert "inner.bias" not in doubled

    def test_a_sparse_gradient_is_that_of_a_dense_one(self):
        def rows(*, sparse, size=3):
            torch.manual_seed(0)
            module = torch.nn.Embedding(5, size, sparse=sparse)
            return snapshot(module, (torch.tensor([1, 3, 3]),))

        assert told(rows(sparse=False), rows(sparse=True)) == {}
        assert told(rows(sparse=True), rows(sparse=False, size=4)) == {
            "weight": "has a gradient of shape (5, 4), it was (5, 3)"
        }

    def test_a_function_that_returns_something_else_each_time(self):
        calls = []

        def function(x):
            calls.append(x)
            return {f"call {len(calls)}": x * 2}

        taken = snapshot(function, points())

        assert list(taken.outputs) == ["output['call 1']"]
        assert told(taken, snapshot(lambda x: x * 2, points())) == {}

    def test_a_parameter_that_has_another_name_is_gone_or_is_new(self):
        renamed = told(snapshot(), snapshot(Net(name="head")))
        without = told(snapshot(), snapshot(Net(bias=False)))

        assert renamed["out.weight"] == "is now called head.weight, with the same gradient"
        assert without["out.bias"] == "has no gradient any more: it is gone, or frozen"
        assert told(snapshot(Net(bias=False)), snapshot())["out.bias"].startswith("is new")

    def test_a_cut_graph_a_detour_and_nan(self):
        class Cut(Net):
            def forward(self, x):
                return self.out(self.norm(self.inner(x).detach()).tanh())

        class Other(Net):
            def forward(self, x):
                return self.out(self.norm(self.inner(x)).sin())

        cut = told(snapshot(), snapshot(Cut()))
        other = told(snapshot(), snapshot(Other()))
        nan = told(snapshot(), snapshot(Net(factor=float("nan"))))

        assert cut["inner.weight"].startswith("has a gradient of zero, its norm was ")
        assert told(snapshot(Cut()), snapshot())["inner.weight"].endswith(", it was zero")
        assert other["inner.weight"].startswith("has another gradient: off by about ")
        assert nan["out.weight"] == "has NaN or infinity in its gradient"
        assert told(snapshot(Net(factor=float("nan"))), snapshot())["out.weight"].startswith(
            "has a finite gradient"
        )

    def test_nothing_of_the_users_changes(self):
        module, inputs = Net(), points()
        before = {name: t.clone() for name, t in module.state_dict().items()}
        state = torch.get_rng_state()

        snapshot(module, inputs)

        assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())
        assert torch.equal(state, torch.get_rng_state())
        assert inputs.grad is None
        assert all(p.grad is None for p in module.parameters())

    def test_functions_with_nested_arguments(self):
        def function(pair, *, scale):
            return {"z": pair["a"][0] * scale + pair["a"][1].real, "label": torch.ones(1).long()}

        inputs = {
            "pair": {"a": [points(), torch.ones(16, 6, dtype=torch.complex64).requires_grad_()]},
            "scale": 2.0,
        }
        taken = snapshot(function, inputs)

        assert list(taken.gradients) == ["inputs['pair']['a'][0]", "inputs['pair']['a'][1]"]
        assert list(taken.outputs) == ["output['z']"]

    @pytest.mark.parametrize(
        ("function", "inputs", "message"),
        [
            (3, torch.ones(1), "expected a module or a function"),
            (torch.sin, torch.ones(1), "nothing has a gradient"),
            (torch.Tensor.detach, torch.ones(1, requires_grad=True), "no output requires grad"),
            (torch.sin, torch.ones(1, device="meta", requires_grad=True), "on the meta device"),
        ],
    )
    def test_wrong_use(self, function, inputs, message):
        with pytest.raises(UsageError, match=message):
            snapshot(function, inputs)

    @pytest.mark.parametrize("seed", ["a", 1.5, True])
    def test_a_wrong_seed(self, seed):
        with pytest.raises(UsageError, match="seed must be a whole number, got"):
            snapshot(seed=seed)

    def test_inference_mode(self):
        with torch.inference_mode(), pytest.raises(UsageError, match="outside of inference_mode"):
            snapshot()

    def test_no_grad_is_lifted_for_it(self):
        with torch.no_grad():
            taken = snapshot()

        assert told(snapshot(), taken) == {}


class TestFile:
    def test_what_was_written_is_read(self, tmp_path):
        taken = snapshot()
        write_snapshot(tmp_path / "a" / "b.json", taken)

        read = read_snapshot(tmp_path / "a" / "b.json")

        assert told(read, taken) == {}
        assert list(read.gradients) == list(taken.gradients)
        assert read_snapshot(tmp_path / "none.json") is None

    @pytest.mark.parametrize("text", ["{", '{"format": 2}', "[]", '{"format": 1, "seed": "x"}'])
    def test_a_file_that_is_none(self, tmp_path, text):
        (tmp_path / "a.json").write_text(text)

        with pytest.raises(UsageError, match="--gradcheck-suite-update-snapshots"):
            read_snapshot(tmp_path / "a.json")

    def test_a_shape_that_is_none(self, tmp_path):
        path = tmp_path / "a.json"
        write_snapshot(path, snapshot())
        path.write_text(re.sub(r'"shape": \[[^]]*\]', '"shape": "ab"', path.read_text()))

        with pytest.raises(UsageError, match=r"is not a snapshot of gradients \(ValueError"):
            read_snapshot(path)

    def test_a_file_of_another_number_of_projections(self, tmp_path):
        path = tmp_path / "a.json"
        write_snapshot(path, snapshot())
        path.write_text(re.sub(r'"projections": \[[^,]*, ', '"projections": [', path.read_text()))

        with pytest.raises(UsageError, match=r"expected 8 projections.*-update-snapshots"):
            read_snapshot(path)

    def test_others_may_read_it_as_its_folder(self, tmp_path):
        folder = tmp_path / "a"
        folder.mkdir(mode=0o750)
        write_snapshot(folder / "b.json", snapshot())
        assert (folder / "b.json").stat().st_mode & 0o777 == 0o640

        (folder / "b.json").chmod(0o600)
        write_snapshot(folder / "b.json", snapshot())
        assert (folder / "b.json").stat().st_mode & 0o777 == 0o600

    def test_nothing_is_left_beside_a_file_that_can_not_be_replaced(self, tmp_path):
        (tmp_path / "b.json").mkdir()

        with pytest.raises(UsageError, match="cannot write the snapshot"):
            write_snapshot(tmp_path / "b.json", snapshot())
        assert [path.name for path in tmp_path.iterdir()] == ["b.json"]

    def test_a_folder_that_can_not_be_made(self, tmp_path):
        (tmp_path / "a").write_text("")

        with pytest.raises(UsageError, match="cannot write the snapshot"):
            write_snapshot(tmp_path / "a" / "b.json", snapshot())


SOURCE = """
    import os

    def model():
        torch.manual_seed(int(os.environ.get("SEED", "0")))
        return torch.nn.Linear(3, 2)

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            y = self.inner(x)
            return y + (y - y.detach()) * float(os.environ.get("MORE", "0"))

    @pytest.mark.parametrize("kind", ["a/b", "c"])
    def test_stored(gradient_check, kind):
        gradient_check.snapshot(Scaled(), torch.ones(4, 3))
        gradient_check.snapshot(model(), torch.ones(4, 3), name="second")

    def test_twice(gradient_check):
        gradient_check.snapshot(Scaled(), torch.ones(4, 3))
        with pytest.raises(pytest.fail.Exception, match="give each a name"):
            gradient_check.snapshot(Scaled(), torch.ones(4, 3))

    def test_many(gradient_check):
        more = float(os.environ.get("MORE", "0"))
        inputs = {f"x{n}": torch.ones(2, requires_grad=True) for n in range(12)}
        gradient_check.snapshot(
            lambda **x: sum(t * (1 + more * n) for n, t in enumerate(x.values(), 1)), inputs
        )

    def test_wrong_use(gradient_check):
        with pytest.raises(Exception, match="expected a module or a function"):
            gradient_check.snapshot(3, torch.ones(1))

    def test_names(gradient_check):
        torch.manual_seed(0)
        module = torch.nn.Sequential()
        module.add_module(os.environ.get("NAME", "old"), torch.nn.Linear(3, 2))
        module.add_module("last", torch.nn.Linear(2, 2))
        module.last.bias.requires_grad_("NAME" in os.environ)
        gradient_check.snapshot(module, torch.ones(4, 3))

    def test_raises(gradient_check):
        def mine(x):
            if "RAISE" in os.environ:
                raise LookupError("mine")
            return x * 2

        gradient_check.snapshot(mine, torch.ones(2, requires_grad=True))

    def test_random(gradient_check):
        dtype = getattr(torch, os.environ.get("DTYPE", "float32"))
        gradient_check.snapshot(
            torch.nn.Dropout(0.5), torch.ones(9, dtype=dtype, requires_grad=True),
            seed=int(os.environ.get("SNAP", "0")),
        )
"""


@pytest.mark.slow
def test_in_a_test(run_tests, monkeypatch):
    missing = run_tests(SOURCE, "-k", "test_stored")
    missing.assert_outcomes(failed=2, deselected=6)
    missing.stdout.fnmatch_lines(
        [
            ">*gradient_check.snapshot(Scaled(), torch.ones(4, 3))",
            "E *Failed: there is no snapshot of gradients at __gradients__/*; write it with: *",
        ]
    )

    run_tests(SOURCE, "--gradcheck-suite-update-snapshots").assert_outcomes(passed=8)
    run_tests(SOURCE).assert_outcomes(passed=8)

    monkeypatch.setenv("MORE", "1")
    changed = run_tests(SOURCE, "-k", "test_twice or test_many")
    changed.stdout.fnmatch_lines(
        [
            "E *gradients differ from the snapshot __gradients__/*test_twice.json: 2 of 2",
            "E *every parameter and input has 2 times the gradient that it had",
            "E *the outputs are the same: backward alone changed",
            "E *if the new gradients are right: pytest --gradcheck-suite-update-snapshots",
            "E *gradients differ from the snapshot __gradients__/*test_many.json: 12 of 12",
            "E *inputs?'x0'? has 2 times the gradient that it had",
            "E *inputs?'x9'? has 11 times the gradient that it had",
            "E *and 2 more",
            "E *output changed as well: the forward is another",
        ]
    )

    monkeypatch.setenv("NAME", "new")
    renamed = run_tests(SOURCE, "-k", "test_names")
    renamed.stdout.fnmatch_lines(
        [
            "E *gradients differ from the snapshot __gradients__/*test_names.json: 3 of 4",
            "E *old.weight is now called new.weight, with the same gradient",
            "E *last.bias is new: the snapshot has no such gradient",
            "E *the outputs are the same, and so are the gradients that both have",
        ]
    )

    monkeypatch.setenv("RAISE", "1")
    raises = run_tests(SOURCE, "-k", "test_raises")
    raises.stdout.fnmatch_lines([">*raise LookupError?*mine*", "E *LookupError: mine"])
    assert "fingerprints.py" not in raises.stdout.str()

    monkeypatch.setenv("SEED", "1")
    other = run_tests(SOURCE, "-k", "test_twice")
    other.stdout.fnmatch_lines(["E *inner.weight, inner.bias had other values when it was taken*"])

    monkeypatch.setenv("DTYPE", "float64")
    random = run_tests(SOURCE, "-k", "test_random")
    random.stdout.fnmatch_lines(["E *the function draws random numbers*"])

    monkeypatch.setenv("SNAP", "3")
    seeded = run_tests(SOURCE, "-k", "test_random")
    seeded.stdout.fnmatch_lines(["E *it was taken with seed=0, now it is seed=3"])
