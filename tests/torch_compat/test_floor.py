"""A torch that can't be worked with is named in one line, and what needs none goes on working."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from gradcheck_suite._torch_floor import complaint_about

TORCHES = {
    "too old": ("__version__ = '2.4.1+cu121'", "PyTorch 2.6 or later", "torch 2.4.1+cu121"),
    "broken": (
        "raise OSError('libcudart.so.12: cannot open shared object file')",
        "import of the torch that is installed here fails",
        "OSError: libcudart.so.12: cannot open shared object file",
    ),
    "broken by what it needs": ("import no_such_numbers", "fails", "no_such_numbers"),
    "something else": ("", "finds something else here", "Rename it"),
}


def laid(folder, name):
    source, *words = TORCHES[name]
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    return folder, words


@pytest.fixture(params=TORCHES)
def torch_here(request, tmp_path):
    return laid(tmp_path, request.param)


@pytest.fixture
def old_torch(tmp_path):
    return laid(tmp_path, "too old")


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def command(folder, *arguments):
    return run(folder, "-m", "gradcheck_suite", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("audit", "script.py"),
        ("verify", "script.py:f", "--inputs", "script.py:f"),
        ("graph", "script.py:f", "-o", "graph.html"),
        ("localize", "script.py:f", "--inputs", "script.py:f"),
        ("demo",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_runs_code_says_so_in_one_line(old_torch, arguments):
    folder, words = old_torch
    (folder / "script.py").write_text("def f():\n    return 1\n")
    done = command(folder, *arguments)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert all(word in line for word in words), line
    assert line.endswith("gradcheck-lint, explain and rules work without")


def test_what_needs_no_torch_works(old_torch):
    folder, _ = old_torch
    (folder / "script.py").write_text("import torch\n")
    assert command(folder, "explain", "GCS301").returncode == 0
    assert command(folder, "rules").returncode == 0
    assert run(folder, "-m", "gradcheck_lint", "script.py").returncode == 0


def test_every_name_of_the_api_raises_an_error_that_says_so(torch_here):
    folder, words = torch_here
    program = """
        import gradcheck_suite as gs
        for name in ("audit", "check_gradients", "trace_graph", "check_accumulation", "localize"):
            try:
                getattr(gs, name)
            except ImportError as error:
                assert isinstance(error, gs.UsageError)
                print(error)
    """
    done = run(folder, "-c", textwrap.dedent(program))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 5
    assert all(word in line for word in words for line in done.stdout.splitlines())


@pytest.mark.slow
def test_the_plugin_harms_no_suite(torch_here):
    folder, words = torch_here
    (folder / "test_theirs.py").write_text(
        textwrap.dedent(
            """
            import contextlib

            def test_plain():
                with contextlib.suppress(Exception):
                    import torch

            def test_of_ours(autograd_audit):
                pass
            """
        )
    )
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py")
    assert "1 passed, 1 error" in done.stdout, done.stdout
    assert all(word in " ".join(done.stdout.split()) for word in words), done.stdout


@pytest.mark.parametrize(
    "version", ["2.6.0", "2.6.0a0+gitabc", "2.15.0+cu132", "2.16.0.dev20261101", "3.0", "main"]
)
def test_what_is_new_enough_is_taken(version):
    assert complaint_about(version) is None


@pytest.mark.parametrize("version", ["2.5.1", "1.13.1+cpu", "2.0"])
def test_what_is_older_is_not(version):
    assert f"torch {version} is installed" in complaint_about(version)


WORK = """
    import torch
    {before}
    import gradcheck_suite as gs

    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with gs.audit() as session:
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(8, 3)).sum().backward()
            optimizer.step()
    assert session.findings == (), session.findings
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert gs.check_gradients(torch.sin, (x,)).ok
    assert gs.trace_graph(x.sin().sum()).nodes
    print("done")
"""


@pytest.mark.parametrize(
    "before",
    [
        "import gradcheck_suite",
        "import sys; sys.modules['numpy'] = None",
        "torch.distributed.is_available = lambda: False",
        "torch.__version__ = '2.16.0.dev20261101+cpu'",
        "torch.__version__ = 'built here'",
    ],
)
@pytest.mark.slow
def test_unusual_torches_are_worked_with(tmp_path, before):
    # torch 2.6 leaves a temporary folder to the end of the interpreter.
    strictly = ("-W", "error", "-W", "ignore::ResourceWarning")
    done = run(tmp_path, *strictly, "-c", textwrap.dedent(WORK.format(before=before)))
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.slow
def test_a_torch_that_is_imported_after_us_is_the_same(tmp_path):
    program = "import gradcheck_suite as gs; gs.audit\n" + textwrap.dedent(WORK.format(before=""))
    done = run(tmp_path, "-c", program)
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.slow
def test_without_numpy_from_the_start(tmp_path):
    program = "import sys; sys.modules['numpy'] = None\n" + textwrap.dedent(WORK.format(before=""))
    done = run(tmp_path, "-W", "ignore", "-c", program)
    assert done.stdout == "done\n", done.stderr
