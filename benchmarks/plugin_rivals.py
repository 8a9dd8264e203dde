"""Which mistakes of training steps and backwards two plugins of pytest find, and where they point.

Every subject of ``rival_subjects`` is tested wrong and right: by pytest-torch with what it has for
that kind of subject, all of it together, and by this plugin with one fixture. Both run in one
pytest, of an interpreter that has both plugins:

    python -m benchmarks.plugin_rivals --python BIN [--misses]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from benchmarks.harness import Scores, run_as_command
from benchmarks.rival_subjects import SUBJECTS, Subject

if TYPE_CHECKING:
    import argparse

_SUPPORT = """\
import importlib
import sys
import torch
from pytest_torch import TrainingSetup as Setup

torch.manual_seed(0)
x = torch.randn(8, 4)

def fresh(name):
    sys.modules.pop(name, None)  # with nothing in its lists yet
    return importlib.import_module(name)

batches = [(x, x.sum(1, keepdim=True))] * 4  # that a loss goes down is no chance then
"""
_RIVAL = {
    "training": """\
    run = run_training(subject.make_setup, batches, subject.step, steps=30)
    run.assert_healthy(min_relative_decrease=0.1)
    setup = subject.make_setup()
    assert_optimizer_coverage(setup.model, setup.optimizers)
    if not isinstance(setup.model, torch.nn.ModuleDict):
        loss = lambda out: out.pow(2).mean()
        assert_gradients_finite(setup.model, batches[0][0], loss)
        assert_all_params_receive_grad(setup.model, batches[0][0], loss)
""",
    "accumulation": """\
    assert_accumulation_equivalent(subject.make_setup, batches, subject.make_step)
""",
    "mixed precision": """\
    assert_mixed_precision_training(subject.make_setup, batches, subject.step, steps=8)
""",
    "frozen": """\
    setup = subject.make_setup()
    loss = lambda out: out.pow(2).mean()
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.05)
    assert_frozen(setup.model, batches[0][0], loss, "0.*", optimizer=optimizer, steps=4)
    run = run_training(subject.make_setup, batches, subject.step, steps=30)
    run.assert_healthy(min_relative_decrease=0.1)
""",
    "leak": """\
    setup = subject.make_setup()
    for batch in batches:
        subject.step(setup, batch)
""",
    "function": """\
    assert_gradcheck(subject.function, subject.inputs)
""",
}
_OURS_STEPS = """\
    torch.manual_seed(0)
    setup = subject.make_setup()
    {prepare}
    for index, batch in enumerate(batches * 8):
        setup.step_index = index
        step(setup, batch)
"""
_OURS = {
    **dict.fromkeys(
        ("training", "mixed precision", "leak"), _OURS_STEPS.format(prepare="step = subject.step")
    ),
    "frozen": _OURS_STEPS.format(
        prepare="step = subject.step\n    autograd_audit.frozen('0', model=setup.model)"
    ),
    "accumulation": """\
    def train(setup, batches, accumulation_steps):
        step = subject.make_step(accumulation_steps)
        for index, batch in enumerate(batches):
            setup.step_index = index
            step(setup, batch)
    gradient_check.accumulation(subject.make_setup, train, batches[0])
""",
    "function": """\
    inputs = [x.clone().requires_grad_() for x in subject.inputs]
    gradient_check(subject.function, inputs, fail_on='warning')
""",
}
_TEST = """\
import pytest
import torch
from support import batches, fresh
from pytest_torch import *

subject = fresh("{module}")  # its leaks may outlive a test: pytest-torch runs the body repeatedly

{mark}
def test_pytest_torch():
{rival}
{audit}
def test_gradcheck_suite({fixture}):
    subject = fresh("{module}")
{ours}
"""


def run(options: argparse.Namespace) -> Scores:
    """Test all subjects in one pytest, and count."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "support.py").write_text(_SUPPORT, encoding="utf-8")
        for number, subject in enumerate(SUBJECTS):
            for is_wrong in (True, False):
                _write(folder, subject, number, is_wrong=is_wrong)
        junit = folder / "junit.xml"
        done = subprocess.run(
            [
                *(options.python, "-m", "pytest", "-q", "-p", "no:randomly", f"--junitxml={junit}"),
                *("-p", "no:cacheprovider", "--import-mode=prepend"),
            ],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
        )
        if not junit.exists() or "error" in done.stdout.splitlines()[-1]:
            sys.exit(f"pytest exited with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        told = {
            (case.get("classname", "").rpartition(".")[2], case.get("name", "")): _failure(case)
            for case in ElementTree.parse(junit).iter("testcase")
        }
    return _scores(told, tells_misses=options.misses)


def _module(number: int, *, is_wrong: bool) -> str:
    return f"{'wrong' if is_wrong else 'right'}_{number}"


def _write(folder: Path, subject: Subject, number: int, *, is_wrong: bool) -> None:
    module = _module(number, is_wrong=is_wrong)
    (folder / f"{module}.py").write_text(subject.text(is_wrong=is_wrong), encoding="utf-8")
    is_checked = subject.kind in {"function", "accumulation"}
    fixture = "gradient_check" if is_checked else "autograd_audit"
    text = _TEST.format(
        module=module,
        mark="@pytest.mark.torch_memory_leak" if subject.kind == "leak" else "",
        rival=_RIVAL[subject.kind],
        audit="" if is_checked else "@pytest.mark.autograd_audit(fail_on='warning')",
        fixture=fixture,
        ours=_OURS[subject.kind],
    )
    (folder / f"test_{module}.py").write_text(text, encoding="utf-8")


def _failure(case: ElementTree.Element) -> str | None:
    """Return what a test has failed with, or None."""
    for child in case:
        if child.tag in {"failure", "error"}:
            return f"{child.get('message')}\n{child.text}"
    return None


def _scores(told: dict[tuple[str, str], str | None], *, tells_misses: bool) -> Scores:
    rows = []
    found: dict[str, list[int]] = {}
    for plugin in ("pytest_torch", "gradcheck_suite"):
        counts = found[plugin] = [0, 0, 0]
        for number, subject in enumerate(SUBJECTS):
            wrong, right = _module(number, is_wrong=True), _module(number, is_wrong=False)
            is_mistake = subject.wrong != subject.right
            failure = told[f"test_{wrong}", f"test_{plugin}"]
            spoke = told[f"test_{right}", f"test_{plugin}"] is not None
            places = [
                f"{wrong}.py:{line}"
                for line, text in enumerate(subject.text(is_wrong=True).splitlines(), 1)
                if text.endswith("# here") or "def backward" in text
            ]
            counts[0] += is_mistake and failure is not None
            counts[1] += failure is not None and any(place in failure for place in places)
            counts[2] += spoke
            if tells_misses and (failure is None or spoke):
                what = "false alarm" if spoke else "missed"
                print(f"{plugin}: {what}: {subject.name}", file=sys.stderr)
        mistakes = sum(subject.wrong != subject.right for subject in SUBJECTS)
        rows.append((plugin.replace("_", "-"), mistakes, *counts))
    theirs, ours = found["pytest_torch"], found["gradcheck_suite"]
    return Scores(
        title="Mistakes of training steps and backwards that plugins of pytest find",
        command="python -m benchmarks.plugin_rivals --python BIN",
        columns=("", "mistakes", "found", "line named", "correct twins that fail"),
        rows=tuple(rows),
        goal="more found than by pytest-torch, with the line, and no correct twin fails",
        met=ours[0] > theirs[0] and ours[1] > theirs[1] and not ours[2],
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that has both plugins"
    )
    parser.add_argument("--misses", action="store_true", help="name what is missed, and alarms")


if __name__ == "__main__":
    sys.exit(run_as_command(run, _options))
