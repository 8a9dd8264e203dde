"""``gradcheck-suite`` as a whole: its help, its exit status, and its words when things fail."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import gradcheck_suite as gs
from gradcheck_lint.cli import main as lint
from gradcheck_suite import cli
from gradcheck_suite.commands import explain
from tests import warm_python

WRONG_BACKWARD = """
import torch

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * cotangent

def make_inputs():
    return torch.randn(3, dtype=torch.float64, requires_grad=True)
"""


def run(*arguments, **options):
    return warm_python.run(["-m", "gradcheck_suite", *arguments], **options)


@pytest.mark.parametrize(
    "command",
    ["audit", "verify", "localize", "graph", "demo", "explain", "rules", "doctor", "init"],
)
def test_each_command_has_help_that_fits_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: gradcheck-suite {command}")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["audit", "--outputformat", "html", "train.py"], "did you mean --output-format?"),
        (["rules", "--qqq=1"], "unrecognized arguments: --qqq=1\n"),
    ],
)
def test_an_unknown_option_is_told_with_the_usage_of_its_command(words, advice, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"usage: gradcheck-suite {words[0]} ")
    assert told.endswith((f"{advice}\n", advice))


@pytest.mark.parametrize("command", ["audit", "verify", "localize", "graph", "demo"])
def test_a_command_that_may_fail_on_findings_tells_its_exit_statuses(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    _, _, statuses = capsys.readouterr().out.partition("exit status: ")
    assert "--fail-on" in " ".join(statuses.split())


@pytest.mark.parametrize("arguments", [["adult"], ["explain"], ["rules", "--no-such-option"]])
def test_misuse_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: gradcheck-suite" in capsys.readouterr().err


def test_the_bare_command_prints_a_page_that_says_where_to_begin():
    done = run(env={**os.environ, "COLUMNS": "80"})
    assert (done.returncode, done.stdout) == (2, "")
    page = done.stderr
    assert max(map(len, page.splitlines())) <= 80
    assert "Find the autograd mistakes that raise nothing in PyTorch code" in page
    for command in cli._COMMANDS:
        assert f"\n    {command} " in page
    assert page.count("\n  gradcheck-suite ") == 3
    assert "read on: gradcheck-suite COMMAND --help" in page


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("audti", "did you mean 'audit'?"),
        ("explian", "did you mean 'explain'?"),
        ("lint", "source is linted by a command of its own: gradcheck-lint PATH..."),
        ("xyz", "expected audit, verify, localize, graph, demo, explain, rules, doctor, init"),
    ],
)
def test_a_word_that_is_no_command_is_answered_with_one(word, advice, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([word, "."])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(f"there is no command {word!r}; {advice}\n")


@pytest.mark.parametrize("main", [cli.main, lint])
def test_the_version_has_a_short_option(main, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["-V"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip().endswith(gs.__version__)


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("gradcheck-suite", "lo", {"localize"}),
        ("gradcheck-suite", "verify --inp", {"--inputs"}),
        ("gradcheck-suite", "verify mod", {"model.py"}),
        ("gradcheck-suite", "explain leaf-", {"leaf-inplace", "leaf-rebound"}),
        ("gradcheck-suite", "audit --output-format js", {"json"}),
        ("gradcheck-lint", "--unsafe", {"--unsafe-fixes"}),
        ("gradcheck-lint", "mod", {"model.py"}),
    ],
)
def test_bash_completes_commands_options_files_and_rules(tmp_path, command, words, expected):
    (tmp_path / "model.py").touch()
    module = {"gradcheck-suite": "gradcheck_suite", "gradcheck-lint": "gradcheck_lint"}[command]
    script = subprocess.run(
        [sys.executable, "-m", module, "--print-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = f"{command} {words}"
    asks = (
        f"{script}\nCOMP_WORDS=({line}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))\n"
        f"_shtab_{command.replace('-', '_')}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    )
    done = subprocess.run(
        ["bash", "-c", asks], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
@pytest.mark.parametrize("main", [cli.main, lint])
def test_other_shells_have_scripts_too(main, shell, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", shell])
    assert stop.value.code == 0
    script = capsys.readouterr().out
    assert "AUTOMATICALLY GENERATED" in script
    assert "--print-completion" in script


@pytest.mark.parametrize("main", [cli.main, lint])
def test_completion_without_shtab_says_what_to_install(main, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", "bash"])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(
        "error: --print-completion needs shtab, which is not installed here; install it with: "
        "pip install 'gradcheck-suite[completion]'\n"
    )


def test_ctrl_c_is_told_in_one_line(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(explain, "run", interrupted)
    assert cli.main(["explain", "GCS301"]) == 130
    assert capsys.readouterr().err == "gradcheck-suite: interrupted\n"


def interrupt():
    raise KeyboardInterrupt


def test_ctrl_c_that_became_another_exception_is_still_ctrl_c(monkeypatch, capsys):
    def interrupted(_):
        try:
            interrupt()
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr(explain, "run", interrupted)
    assert cli.main(["explain", "GCS301"]) == 130
    assert capsys.readouterr().err == "gradcheck-suite: interrupted\n"


def test_a_bug_of_ours_is_called_one_and_shows_no_traceback(monkeypatch, capsys):
    def broken(_):
        raise RuntimeError("lost my way")

    broken.__code__ = broken.__code__.replace(co_filename=explain.__file__)
    monkeypatch.setattr(explain, "run", broken)
    assert cli.main(["explain", "GCS301"]) == 2
    said = capsys.readouterr().err
    assert "internal error: RuntimeError: lost my way" in said
    assert "please report it with what GRADCHECK_SUITE_TRACEBACK=1 makes it print" in said
    assert "Traceback" not in said
    monkeypatch.setenv("GRADCHECK_SUITE_TRACEBACK", "1")
    assert cli.main(["explain", "GCS301"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_exception_of_the_users_is_shown_from_their_first_frame(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def helper():\n    raise LookupError('mine')\n\ndef make():\n    helper()\n")
    done = run("graph", f"{file}:make")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'File "{file}", line 5, in make' in lines[1]
    assert "gradcheck_suite" not in done.stderr
    assert "LookupError: mine" in lines
    assert lines[-1].startswith("gradcheck-suite: error: graph stopped at the LookupError above")


def test_a_file_that_does_not_parse_is_shown_at_its_line(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def make(:\n    pass\n")
    done = run("graph", f"{file}:make")
    assert done.returncode == 2
    assert f'File "{file}", line 1' in done.stderr
    assert "SyntaxError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "graph plain.py:make",
        "graph model.py:make",
        "verify model.py:make --inputs plain.py:make",
        "localize plain.py:make --inputs plain.py:make",
        "audit model.py",
    ],
)
def test_without_torch_a_command_says_so_in_one_line(tmp_path, words):
    (tmp_path / "plain.py").write_text("def make():\n    return 1\n")
    (tmp_path / "model.py").write_text("import torch\n\n\ndef make():\n    return 1\n")
    # Python takes such an entry for a module that is not there.
    program = (
        "import sys; sys.modules['torch'] = None; from gradcheck_suite.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == (
        f"gradcheck-suite: error: {words.split()[0]} needs PyTorch, which is not installed here; "
        "install it with: pip install 'gradcheck-suite[torch]'\n"
    )


def test_a_module_that_the_users_file_lacks_is_not_blamed_on_torch(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("import no_such_module_of_theirs\n")
    done = run("graph", f"{file}:make")
    assert done.returncode == 2
    assert "No module named 'no_such_module_of_theirs'" in done.stderr
    assert "pip install" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error():
    # Unbuffered, Python itself drops what a closed pipe does not take.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = f"{sys.executable} -m gradcheck_suite rules | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("output_format", ["full", "json"])
@pytest.mark.slow
def test_a_reader_that_leaves_early_does_not_hide_that_there_are_findings(tmp_path, output_format):
    file = tmp_path / "double.py"
    file.write_text(WRONG_BACKWARD)
    arguments = f"verify {file}:Double.apply --inputs {file}:make_inputs --output-format"
    with subprocess.Popen(
        [sys.executable, "-m", "gradcheck_suite", *arguments.split(), output_format],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        command.stdout.close()
        complaints = command.stderr.read()
    assert complaints == b""
    assert command.returncode == 1


def test_a_report_that_cannot_be_written_is_printed_instead(tmp_path):
    file = tmp_path / "script.py"
    file.write_text("import torch\ntorch.ones(1, requires_grad=True).sum().backward()\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    with file.open("a") as script:
        script.write(f"import os; os.rmdir({str(folder)!r})\n")
    gone = folder / "report.json"
    done = run("audit", "--output-format", "json", "--output-file", gone, file)
    assert done.returncode == 2
    assert "gradcheck-suite audit: nothing found" in done.stdout
    assert f"cannot write the report to {gone}: No such file or directory" in done.stderr


def test_what_nothing_can_be_done_with_is_told_before_torch_is_loaded(
    tmp_path, monkeypatch, capsys
):
    """None of these needs torch, whose import takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("train.py", "check.py", "notes.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "sub").mkdir()
    target = ["check.py:f", "--inputs", "check.py:f"]
    for words, said in (
        (["audit", "trian.py"], "there is no file trian.py; did you mean train.py?"),
        (["audit", "sub/check.py"], "there is no file sub/check.py; expected a Python script"),
        (["audit", "note.txt"], "there is no file note.txt; expected a Python script"),
        (["audit", "."], ". is a directory; give it a Python script, such as train.py, or -m"),
        (["audit", "sub"], "sub is a directory; give it a Python script, or -m MODULE"),
        (["audit", "--ignore", "GSC304", "train.py"], "'GSC304', and no mistake has that code"),
        (["audit", "--ignore", "GSC304", "train.py"], "did you mean GCS304?"),
        (["audit", "--output-file", "no/r.html", "train.py"], "no/r.html: there is no folder no"),
        (["verify", *target, "--output-file", "sub"], "the report to sub: it is a folder"),
        (
            ["localize", "check.py:f"],
            "makes the inputs, such as: gradcheck-suite localize check.py:f --inputs check.py:make",
        ),
        (["verify", "check.py"], "verify check.py:TARGET --inputs check.py:make_inputs\n"),
        (["localize", *target, "--output-file", "notes.txt/r"], "there is no folder notes.txt"),
    ):
        assert cli.main(words) == 2, words
        assert said in capsys.readouterr().err
