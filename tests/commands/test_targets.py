from __future__ import annotations

import sys

import pytest

from gradcheck_suite.commands._targets import load_target
from gradcheck_suite.errors import UsageError


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "some_model.py"
    path.write_text(
        "import neighbour_of_model\n"
        "calls = []\n"
        "class Net:\n"
        "    def loss(self): return neighbour_of_model.VALUE\n"
        "def make_inputs(): return 1\n"
    )
    (tmp_path / "neighbour_of_model.py").write_text("VALUE = 7\n")
    return path


def test_a_function_and_a_dotted_name_are_found(file):
    assert load_target(f"{file}:make_inputs")() == 1
    assert load_target(f"{file}:Net.loss")(None) == 7


def test_a_file_runs_once_however_many_targets_name_it(file):
    assert load_target(f"{file}:calls") is load_target(f"{file}:calls")


def test_a_file_that_bears_a_library_name_leaves_the_library_alone(tmp_path):
    import json

    (tmp_path / "json.py").write_text("mine = 1\n")
    assert load_target(f"{tmp_path / 'json.py'}:mine") == 1
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("model.py", "expected FILE.py:name"),
        ("model.py:", "expected FILE.py:name"),
        (":name", "expected FILE.py:name"),
        ("model.py:not a name", "'not a name' is not a Python name"),
        ("no/such/file.py:f", "no/such/file.py does not exist"),
    ],
)
def test_another_form_is_refused_with_the_form_that_is_expected(target, words):
    with pytest.raises(UsageError, match=words):
        load_target(target)


def test_a_directory_is_named_as_one(tmp_path):
    with pytest.raises(UsageError, match="is a directory"):
        load_target(f"{tmp_path}:f")


def test_a_file_that_is_not_python_is_refused(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"\0")
    with pytest.raises(UsageError, match="not a Python source file"):
        load_target(f"{tmp_path / 'weights.pt'}:f")


def test_a_near_miss_is_named(file):
    with pytest.raises(UsageError, match=r"has no 'make_input'; did you mean 'make_inputs'\?"):
        load_target(f"{file}:make_input")
    with pytest.raises(UsageError, match=r"\(Net\) has no 'los'; did you mean 'loss'"):
        load_target(f"{file}:Net.los")


def test_what_the_file_raises_arrives_unchanged_and_leaves_no_half_module(tmp_path):
    path = tmp_path / "broken_model.py"
    path.write_text("raise LookupError('mine')\n")
    for _ in range(2):
        with pytest.raises(LookupError, match="mine"):
            load_target(f"{path}:f")
    assert "broken_model" not in sys.modules


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "src" / "ops_of_ours" / "deep"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder.parent / "__init__.py").write_text("VALUE = 7\n")
    (folder / "train.py").write_text("from .. import VALUE\ndef value(): return VALUE\n")
    return folder


@pytest.mark.parametrize("name", ["src/ops_of_ours/deep/train.py", "ops_of_ours.deep.train"])
def test_a_file_in_a_package_is_a_module_of_it(package, name):
    assert load_target(f"{name}:value")() == 7
    module = sys.modules["ops_of_ours.deep.train"]
    assert load_target(f"{package / 'train.py'}:value") is module.value


def test_a_script_of_a_package_finds_its_neighbours_as_scripts_do(package):
    (package / "neighbour_by_name.py").write_text("OTHER = 8\n")
    (package / "run.py").write_text("import neighbour_by_name as it\nother = it.OTHER\n")
    assert load_target("src/ops_of_ours/deep/run.py:other") == 8


def test_a_package_that_bears_the_name_of_another_leaves_that_alone(tmp_path):
    import json

    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("")
    (tmp_path / "json" / "of_ours.py").write_text("mine = 1\n")
    assert load_target(f"{tmp_path / 'json' / 'of_ours.py'}:mine") == 1
    assert sys.modules["json"] is json


def test_what_a_module_lacks_itself_is_not_said_of_the_module(package):
    (package / "lacking.py").write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_target("ops_of_ours.deep.lacking:f")
    with pytest.raises(UsageError, match=r"ops_of_ours\.deep\.tarin does not exist; expected FILE"):
        load_target("ops_of_ours.deep.tarin:f")
