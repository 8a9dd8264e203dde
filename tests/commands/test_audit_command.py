"""``gradcheck-suite audit`` from the outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from gradcheck_suite._addresses import page_of
from tests import warm_python

CLEAN = """\
import torch
weight = torch.randn(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    (weight ** 2).sum().backward()
    optimizer.step()
print("done")
"""
BUGGY = CLEAN.replace("    optimizer.zero_grad()\n", "")
RAISING = """\
import torch
h = torch.randn(3, requires_grad=True).exp()
loss = (h * h).sum()
h += 1
loss.backward()
"""


@pytest.fixture
def audit(tmp_path):
    def run(source, *options, arguments=(), name="train.py"):
        (tmp_path / name).write_text(textwrap.dedent(source))
        words = ["audit", *options, name, *arguments]
        return warm_python.run(["-c", _MAIN, *words], cwd=tmp_path, timeout=120)

    return run


_MAIN = "import sys; from gradcheck_suite.cli import main; sys.exit(main(sys.argv[1:]))"


def test_a_clean_script(audit):
    done = audit(CLEAN)
    assert done.returncode == 0, done.stderr
    # A blank line keeps the report and the script's own output apart.
    assert done.stdout.startswith("done\n\n")
    assert "nothing found (3 steps watched)" in done.stdout
    assert done.stderr == ""


def test_a_mistake_is_reported_after_the_output_and_fails(audit):
    done = audit(BUGGY, "--output-format", "concise")
    assert done.returncode == 1
    first, second, *_ = done.stdout.splitlines()
    assert first == "done"
    assert second.startswith("train.py:6:")
    assert "GCS301" in second
    assert done.stderr == ""


@pytest.mark.slow
def test_fail_on_sets_the_threshold(audit):
    assert audit(BUGGY, "--fail-on", "error").returncode == 1
    assert audit(CLEAN, "--fail-on", "note").returncode == 0


def test_a_machine_format_in_a_file_of_its_own(audit, tmp_path):
    done = audit(BUGGY, "--output-format", "json", "--output-file", "report.json")
    assert done.stdout == "done\n"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["tool"] == "gradcheck-suite audit"
    assert [finding["code"] for finding in report["findings"]] == ["GCS301"]
    assert report["findings"][0]["path"] == "train.py"
    assert report["summary"]["steps"] == 3


def test_markdown_for_the_summary_of_a_job(audit, tmp_path):
    done = audit(BUGGY, "--output-format", "markdown", "--output-file", "summary.md")
    assert (done.returncode, done.stdout) == (1, "done\n")
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("## gradcheck-suite audit: 1 error in train.py\n")
    assert f"| [GCS301]({page_of('GCS301')}) | error | <code>train.py:6" in text
    assert "\n```text\n" in text


def test_the_traceback_comes_first_and_shows_only_the_users_frames(audit):
    done = audit(RAISING, "--output-format", "concise")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "gradcheck_suite" not in done.stderr
    assert "modified by an inplace operation" in done.stderr
    assert "train.py:4:" in done.stdout
    assert "GCS103" in done.stdout
    assert ": train.py ended with RuntimeError; 1 error in train.py (" in done.stdout


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        (BUGGY + "import sys; sys.exit(3)", 3),
        (BUGGY + "import os; os._exit(0)", 1),
        (BUGGY + "import os; os._exit(4)", 4),
        (CLEAN + "import os; os._exit(0)", 0),
    ],
)
def test_the_scripts_own_status_wins_and_the_report_is_never_lost(audit, source, status):
    done = audit(source, "--output-format", "concise")
    assert done.returncode == status
    assert "gradcheck-suite audit" in done.stdout
    assert ("GCS301" in done.stdout) is (source.startswith(BUGGY))


def test_options_after_the_script_are_the_scripts(audit):
    done = audit("import sys; print(sys.argv)", arguments=["--fail-on", "x", "-m", "--", "-h"])
    assert done.stdout.startswith("['train.py', '--fail-on', 'x', '-m', '--', '-h']\n")
    assert done.returncode == 0


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("arguments", [["--output-format", "json"], ["--output-format=json"]])
def test_an_option_of_ours_after_the_script_is_told_of_and_goes_to_the_script(audit, arguments):
    done = audit("import sys; print(sys.argv[1:])", arguments=arguments)
    assert done.stdout.startswith(f"{arguments}\n\nnot covered\n")
    assert done.stderr == (
        "gradcheck-suite: note: --output-format stands after train.py and goes to it; one for the "
        "audit stands before it: gradcheck-suite audit --output-format ... train.py\n"
    )


def test_a_table_that_nobody_reads_is_told_of(audit, tmp_path):
    settings = "[tool.gradcheck-suite.audit]\nmax_steps = 3\n[tool.gradcheck-suite.lint]\n"
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    assert audit("print('ran')").stderr == (
        "gradcheck-suite: note: nothing reads [tool.gradcheck-suite.audit] in pyproject.toml: the "
        "audit has its options from the command line (see gradcheck-suite audit --help), and the "
        "tables are lint and pytest\n"
    )
    (tmp_path / "pyproject.toml").write_text(settings.partition("\n[")[2], encoding="utf-8")
    assert audit("print('ran')").stderr == ""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("import sys; print('--max-steps' in sys.argv)", ["--max-steps", "3"]),
        ("print('ran')", ["x", "--", "--output-format", "json"]),
        ("print('ran')", ["--epochs", "3", "-m", "output-format"]),
    ],
)
def test_an_option_of_the_scripts_own_is_not_told_of(audit, source, arguments):
    assert audit(source, arguments=arguments).stderr == ""


def test_a_module(audit, tmp_path):
    (tmp_path / "train.py").write_text(BUGGY)
    done = warm_python.run(
        ["-c", _MAIN, "audit", "--output-format", "concise", "-m", "train", "-x"], cwd=tmp_path
    )
    assert done.returncode == 1
    assert "GCS301" in done.stdout


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py"], "there is no file missing.py"),
        (["."], "is a directory"),
        ([], "SCRIPT"),
        (["--bogus", "train.py"], "--bogus"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(tmp_path, arguments, words):
    (tmp_path / "train.py").write_text("print('ran')")
    done = warm_python.run(["-c", _MAIN, "audit", *arguments], cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_interrupt_leaves_a_partial_report(tmp_path):
    source = BUGGY + "print('waiting', flush=True)\nimport time\ntime.sleep(60)\n"
    (tmp_path / "train.py").write_text(source)
    process = warm_python.start(
        ["-c", _MAIN, "audit", "--output-format", "concise", "train.py"], cwd=tmp_path
    )
    while "waiting" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "GCS301" in out
    assert error.rstrip().endswith("KeyboardInterrupt")


LOADER = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.randn(12, 3), torch.randn(12, 1))
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=METHOD):
        optimizer.zero_grad()
        (net(x) - y).pow(2).mean().backward()
        optimizer.step()
    print("done")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_data_loader_workers(audit, method):
    done = audit(LOADER.replace("METHOD", repr(method)), "--output-format", "concise")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 1
    assert done.stdout.count("gradcheck-suite audit:") == 1
    assert "3 steps" in done.stdout


WAITING = BUGGY.replace("print", "print('ready', flush=True)\nimport time\ntime.sleep(60)\nprint")


ENDING = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP", "SIGQUIT")]


@pytest.fixture
def waiting(tmp_path):
    """Start a script that stops to wait, and return its process."""
    (tmp_path / "train.py").write_text(WAITING)
    started = []
    # A shell has its background jobs ignore some, and children inherit that.
    ignored = [each for each in ENDING if each and signal.getsignal(each) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)

    def start(*options):
        process = warm_python.start(["-c", _MAIN, "audit", *options, "train.py"], cwd=tmp_path)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.sampled(every=3)
@pytest.mark.skipif(None in ENDING, reason="there are no such signals here")
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_ends_the_script_leaves_a_report(waiting, number):
    process = waiting("--output-format", "concise")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out.count("GCS301") == 1
    assert err == ""
    # Whoever waits for it learns of the signal.
    assert process.returncode == -number


@pytest.mark.skipif(None in ENDING, reason="there are no such signals here")
def test_signals_that_come_together_leave_one_report(waiting):
    process = waiting("--output-format", "concise")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert out.count("GCS301") == 1
    assert process.returncode in {-signal.SIGHUP, -signal.SIGTERM}


HANDLING = """\
import signal, time
signal.signal(signal.SIGHUP, lambda *_: print("mine", flush=True))
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
import os
os.kill(os.getpid(), signal.SIGHUP)
os.kill(os.getpid(), signal.SIGQUIT)
"""


@pytest.mark.skipif(None in ENDING, reason="there are no such signals here")
def test_what_the_script_makes_of_a_signal_is_respected(audit):
    done = audit(HANDLING + CLEAN, "--output-format", "concise")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mine\ndone\n")
    assert "3 steps watched" in done.stdout


@pytest.mark.skipif(None in ENDING, reason="there are no such signals here")
@pytest.mark.slow
def test_a_script_under_nohup_runs_on(tmp_path):
    ignoring = "import os, signal; os.kill(os.getpid(), signal.SIGHUP)\n"
    (tmp_path / "train.py").write_text(ignoring + CLEAN)
    words = ["audit", "--output-format", "concise", "train.py"]
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _MAIN, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        signal.signal(signal.SIGHUP, kept)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done\n")


@pytest.mark.skipif(None in ENDING, reason="there are no such signals here")
@pytest.mark.slow
def test_a_terminal_that_goes_away_leaves_the_report_in_its_file(tmp_path):
    # What the script could not write any more is in the way of nothing.
    unsent = WAITING.replace("import time", "import sys, time; sys.stdout.write('half a line')")
    (tmp_path / "train.py").write_text(unsent)
    import fcntl
    import termios

    main, terminal = os.openpty()

    def lead():
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        # Under nohup it would be ignored here as well.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    options = ["--output-format", "json", "--output-file", "report.json"]
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "audit", *options, "train.py"],
        cwd=tmp_path,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lead,  # noqa: PLW1509
    )
    os.close(terminal)
    said = b""
    while b"ready" not in said:
        said += os.read(main, 1024)
    os.close(main)
    process.wait(timeout=60)
    assert process.returncode == -signal.SIGHUP
    report = json.loads((tmp_path / "report.json").read_text())
    assert [finding["code"] for finding in report["findings"]] == ["GCS301"]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal here")
def test_signals_ask_for_the_report_and_end_with_one(waiting):
    process = waiting("--output-format", "concise")
    process.send_signal(signal.SIGUSR1)
    assert process.stderr.readline() == "\n"
    told = process.stderr.readline()
    assert told.startswith("gradcheck-suite audit: report so far, after 3 steps, as SIGUSR1 asked")
    assert told.endswith("the one at the end goes to standard output\n")
    assert "GCS301" in process.stderr.readline()
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert out.count("GCS301") == 1
    assert "GCS301" not in err
    assert process.returncode == -signal.SIGTERM


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal here")
def test_the_report_so_far_leaves_the_output_file_to_the_last(waiting, tmp_path):
    process = waiting("--output-format", "json", "--output-file", "report.json")
    process.send_signal(signal.SIGUSR1)
    process.stderr.readline()
    assert process.stderr.readline().endswith("the one at the end goes to report.json\n")
    assert not (tmp_path / "report.json").exists()
    told = ""
    while "steps watched" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    # Text for whoever asked, JSON for the program that reads the file.
    assert "missing-zero-grad" in told
    process.terminate()
    process.communicate(timeout=60)
    assert json.loads((tmp_path / "report.json").read_text())["summary"]["steps"] == 3


@pytest.mark.slow
def test_max_steps_watches_the_first_steps_only(audit):
    done = audit(CLEAN.replace("range(3)", "range(9)"), "--max-steps", "2")
    assert done.returncode == 0
    assert done.stdout.startswith("done\n")
    assert "2 steps watched" in done.stdout
    assert "what ran after the first 2 steps" in done.stdout
    bad = audit(CLEAN, "--max-steps", "0")
    assert bad.returncode == 2
    assert "max_steps must be a whole number of at least 1, got 0" in bad.stderr


ONCE_THROUGH_NUMPY = """\
import torch
h = torch.randn(3, requires_grad=True).exp()
loss = (h * h).sum()
h.detach().numpy()[0] += 1
loss.backward()
"""


@pytest.mark.slow
def test_writers_of_code_that_runs_once_are_watched_from_the_start(audit, tmp_path):
    # Where a coverage tool follows the lines of a program, the watch steps aside: a Python afresh.
    (tmp_path / "train.py").write_text(ONCE_THROUGH_NUMPY)
    options = ["--output-format", "json", "--watch-writers", "from_start"]
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, "audit", *options, "train.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if "COVERAGE_" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["code"] == "GCS104"
    assert finding["line"] == 4
    bad = audit(CLEAN, "--watch-writers", "sometimes")
    assert bad.returncode == 2
    assert "watch_writers must be one of 'after_corruption', 'from_start', 'never'" in bad.stderr


@pytest.mark.slow
def test_the_time_that_checksums_take_can_be_bounded(audit):
    source = CLEAN.replace("range(3)", "range(60)")
    options = ("--output-format", "json", "--overhead")
    summaries = [
        json.loads(audit(source, *options, percent).stdout.removeprefix("done\n"))["summary"]
        for percent in ("0", "1000")
    ]
    least, most = (summary["saved_tensors_checksummed"] for summary in summaries)
    # The first three steps are checksummed in any case, and then each 20th at most.
    assert 0 < least < most
    bad = audit(CLEAN, "--overhead", "-1")
    assert bad.returncode == 2
    assert "overhead must be a number of per cent, 0 or more, got -1.0" in bad.stderr


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "closing",
    ["import sys; sys.stdout.close()", "import os; os.close(1)"],
)
def test_a_script_that_closes_standard_output_keeps_its_report(audit, closing):
    done = audit(BUGGY.replace('print("done")', closing), "--output-format", "concise")
    assert done.returncode == 1
    assert "standard output was closed by your code" in done.stderr
    assert "GCS301" in done.stderr
    assert "internal error" not in done.stderr


COPYING = """
import sys
class Copying:
    def __init__(self):
        self.terminal, self.file = sys.stdout, open("log.txt", "w")
    def write(self, text):
        self.terminal.write(text)
        self.file.write(text)
    def flush(self):
        self.file.flush()
"""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("replaced", "printed"),
    [
        ("sys.stdout = Copying()", "done\n"),
        ("sys.stdout = open('log.txt', 'w')", ""),
        ("sys.stdout = None", ""),
    ],
)
def test_a_script_that_replaces_standard_output_keeps_its_report(
    audit, tmp_path, replaced, printed
):
    """The report goes where the command began to write, and not into the script's own log."""
    done = audit(f"{COPYING}{replaced}\n{BUGGY}", "--output-format", "concise")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"{printed}train.py:")
    assert "GCS301" in done.stdout
    log = tmp_path / "log.txt"
    assert not log.exists() or log.read_text() == "done\n"


def test_a_package_that_lacks_a_module_is_not_said_to_be_missing(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import no_such_dependency\n")
    done = warm_python.run(["-m", "gradcheck_suite", "audit", "-m", "package.train"], cwd=tmp_path)
    assert done.returncode == 2
    assert "No module named 'no_such_dependency'" in done.stderr
    assert "there is no module" not in done.stderr


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: SCRIPT\n"),
        ([""], "expected a Python script, or -m MODULE, got ''"),
        (["-m", ".package"], "there is no module .package that can be run"),
        (["-m", ""], "there is no module '' that can be run"),
    ],
)
def test_a_script_that_has_no_name(words, said):
    done = warm_python.run(["-m", "gradcheck_suite", "audit", *words])
    assert done.returncode == 2
    assert said in done.stderr


def test_a_script_whose_folder_is_gone(audit):
    leaving = "import os; os.makedirs('x'); os.chdir('x'); os.rmdir(os.getcwd())"
    done = audit(BUGGY.replace('print("done")', leaving), "--output-format", "concise")
    assert done.returncode == 1
    assert "GCS301" in done.stdout
    assert done.stderr == ""


def test_an_except_hook_that_ends_the_process_keeps_the_report(audit):
    ending = "import os, sys; sys.excepthook = lambda *_: os._exit(7)\n1 / 0"
    done = audit(BUGGY.replace('print("done")', ending), "--output-format", "concise")
    assert done.returncode == 7
    assert "GCS301" in done.stdout


def test_a_module_with_relative_imports(audit, tmp_path):
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "steps.py").write_text("COUNT = 3\n")
    (package / "fit.py").write_text("from .steps import COUNT\n" + BUGGY)
    done = warm_python.run(
        ["-c", _MAIN, "audit", "--output-format", "concise", "-m", "trainer.fit"], cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "trainer/fit.py:7:" in done.stdout


WORKERS = """\
import multiprocessing, sys
import torch

def train(count):
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(count):
        (weight ** 2).sum().backward()
        optimizer.step()
    return count

if __name__ == "__main__":
    context = multiprocessing.get_context(METHOD)
    with context.Pool(1) as pool:
        print("pool", pool.map(train, [2]))
    child = context.Process(target=train, args=(2,))
    child.start()
    child.join()
    print("child", child.exitcode)
"""


CHILDREN = """\
import os, subprocess, sys
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

def train(rank):
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        (weight ** 2).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    STARTING
"""
BY_MULTIPROCESSING = "mp.start_processes(train, nprocs=2, start_method=METHOD)"
IN_ONE_CHILD = "context = mp.get_context(METHOD); p = context.Process(target=train, args=(0,))"
AUDITED = {
    "spawn": (BY_MULTIPROCESSING.replace("METHOD", "'spawn'"), 6),
    "fork": (BY_MULTIPROCESSING.replace("METHOD", "'fork'"), 6),
    "forkserver": (f"{IN_ONE_CHILD.replace('METHOD', repr('forkserver'))}; p.start(); p.join()", 3),
}
STARTED = {
    "a pool": (
        "pool = mp.get_context('spawn').Pool(1); pool.map(train, [0]); pool.close(); pool.join()",
        "1 child process (1 by multiprocessing)",
    ),
    "subprocess": (
        "subprocess.run([sys.executable, '-c', ''], check=True)",
        "1 child process (1 by subprocess)",
    ),
    "os.fork": (
        "os.fork() or (train(0), os._exit(0)); os.wait()",
        "1 child process (1 by os.fork)",
    ),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not all of these are here")
@pytest.mark.parametrize("how", AUDITED)
@pytest.mark.slow
def test_what_multiprocessing_starts_is_audited_too(audit, how):
    starting, steps = AUDITED[how]
    done = audit(CHILDREN.replace("STARTING", starting), "--output-format", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert [each["code"] for each in report["findings"]] == ["GCS301"]
    assert (report["summary"]["steps"], report["summary"]["training_seen"]) == (steps, True)
    assert report["not_covered"] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not all of these are here")
@pytest.mark.parametrize("how", STARTED)
@pytest.mark.slow
def test_training_in_child_processes_is_not_told_as_nothing_found(audit, how):
    starting, told = STARTED[how]
    done = audit(CHILDREN.replace("STARTING", starting), "--output-format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["training_seen"] is False
    (line,) = [line for line in report["not_covered"] if "child process" in line]
    assert line.startswith(told)
    assert "`torchrun --no-python gradcheck-suite audit train.py`" in line
    assert "`with gs.audit():` in the function" in line


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("options", [(), ("--output-format", "concise"), ("--fail-on", "note")])
def test_a_script_that_trains_nothing_has_a_verdict_of_its_own(audit, options):
    done = audit("print('hello')", *options)
    assert done.returncode == 0, done.stderr
    assert "nothing found" not in done.stdout
    last = done.stdout.splitlines()[-1]
    told = "gradcheck-suite audit: no training seen: 0 steps, 0 backwards in this process"
    assert last.startswith(told)


def test_a_script_that_only_computes_gradients_has_been_watched(audit):
    source = "import torch\ntorch.ones(2, requires_grad=True).sum().backward()\n"
    done = audit(source, "--output-format", "concise")
    assert "nothing found (0 steps watched; 1 thing not covered)" in done.stdout


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_processes_that_load_data_or_are_other_programs_are_no_training(audit, method):
    source = LOADER.replace("METHOD", repr(method)).replace(
        'print("done")', "import subprocess; subprocess.run(['true'])"
    )
    done = audit(source, "--output-format", "json")
    assert json.loads(done.stdout)["not_covered"] == []


@pytest.mark.sampled(every=4)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("ending", ["sys.exit(3)", "raise SystemExit(3)", "pass", "1 / 0"])
def test_a_forked_child_that_comes_to_the_end_leaves_the_report_to_its_parent(audit, ending):
    forking = f"import os, sys\nif os.fork() == 0:\n    {ending}\nelse:\n    os.wait()\n"
    done = audit(BUGGY.replace('print("done")', forking), "--output-format", "concise")
    assert done.returncode == 1
    assert done.stdout.count("GCS301") == 1
    assert done.stdout.count("gradcheck-suite audit:") == 1
    assert done.stderr.count("ZeroDivisionError") == ("/" in ending)


NESTED = """\
import torch
import gradcheck_suite as gs

def train():
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(3):
        (weight ** 2).sum().backward()
        optimizer.step()

with gs.audit(REPORT) as session:
    train()
"""


def test_an_audit_inside_the_script_leaves_it_to_the_commands_report(audit):
    done = audit(NESTED.replace("REPORT", ""), "--output-format", "json")
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert [finding["code"] for finding in report["findings"]] == ["GCS301"]
    assert (report["summary"]["steps"], report["summary"]["training_seen"]) == (3, True)
    (line,) = report["not_covered"]
    assert line == "what ran inside 1 audit opened within this one, beyond what that saw itself"


def test_an_audit_whose_report_the_script_reads_itself_is_left_to_it(audit):
    source = NESTED.replace("REPORT", "report=False") + "print(session.report)\n"
    done = audit(source, "--output-format", "concise")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("GCS301 missing-zero-grad") == 1
    assert "no training seen: 0 steps, 0 backwards in this process" in done.stdout


@pytest.mark.skipif(None in ENDING, reason="there are no such signals here")
@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_an_abrupt_end_loses_nothing_of_the_audits_inside(audit, ending):
    source = NESTED.replace("REPORT", "").replace(
        "    train()\n", f"    train()\n    import os, signal; {ending}\n"
    )
    done = audit(source, "--output-format", "concise")
    assert done.returncode in {1, -signal.SIGTERM}
    assert done.stdout.count("GCS301") == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_workers_end_as_they_do_without_an_audit(audit, method):
    done = audit(WORKERS.replace("METHOD", repr(method)), "--output-format", "concise")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("pool [2]\nchild 0\n")
    assert done.stdout.count("gradcheck-suite audit:") == 1
    assert done.stderr == ""


@pytest.mark.sampled(every=2)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is full")  # noqa: PTH110
@pytest.mark.parametrize("options", [(), ("--output-format", "concise")])
def test_a_full_disk_under_standard_output_loses_no_report(tmp_path, options):
    (tmp_path / "train.py").write_text(BUGGY)
    with open("/dev/full", "w") as full:  # noqa: PTH123
        words = ["-c", _MAIN, "audit", *options, "train.py"]
        done = warm_python.run(words, cwd=tmp_path, stdout=full)
    assert done.returncode == 2
    assert "GCS301" in done.stderr
    assert "cannot write the report to standard output: No space left on device" in done.stderr
    assert "internal error" not in done.stderr


def test_a_report_in_a_file_is_announced(audit, tmp_path):
    done = audit(BUGGY, "--output-file", "found.json", "--output-format", "json")
    assert done.returncode == 1
    assert done.stdout == "done\n"
    assert "1 error in train.py (3 steps watched); the report is in found.json\n" in done.stderr
    assert json.loads((tmp_path / "found.json").read_text())["findings"]
