from __future__ import annotations

import ntpath
import os
import posixpath
import subprocess
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_suite.reporting.paths import display_path, relative_below


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_a_path_below_is_relative(project):
    assert display_path(str(project / "sub" / "train.py")) == "sub/train.py"
    assert display_path("sub/train.py") == "sub/train.py"
    assert display_path("./sub//train.py") == "sub/train.py"


def test_a_path_elsewhere_stays_as_it_was_given(project, tmp_path):
    sibling = str(tmp_path / "project-two" / "train.py")
    assert display_path(sibling) == sibling
    assert display_path("../other.py") == "../other.py"


def test_a_detour_that_ends_below_is_relative(project):
    assert display_path("sub/../train.py") == "train.py"


@pytest.mark.parametrize(
    "name",
    ["<stdin>", "<string>", "<ipython-input-3-0f1e2d3c4b5a>", "<frozen importlib._bootstrap>", ""],
)
def test_names_of_what_is_no_file_survive(project, name):
    assert display_path(name) == name


def test_the_working_directory_may_be_reached_through_a_link(project, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(project)
    (project / "train.py").touch()
    assert display_path(str(tmp_path / "link" / "train.py")) == "train.py"


def test_a_link_below_keeps_its_own_name(project, tmp_path):
    (tmp_path / "outside.py").touch()
    (project / "inside.py").symlink_to(tmp_path / "outside.py")
    assert display_path(str(project / "inside.py")) == "inside.py"


def test_a_detour_through_a_link_is_not_taken_for_the_folder_before_it(project, tmp_path):
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (project / "link").symlink_to(tmp_path / "far" / "deep")
    assert display_path("link/../train.py") == "link/../train.py"


@pytest.mark.skipif(os.name == "nt", reason="a backslash separates folders there")
def test_a_backslash_in_a_name_is_no_separator(project):
    assert display_path("odd\\name.py") == "odd\\name.py"


@pytest.mark.parametrize(
    ("path", "directory", "expected"),
    [
        (r"C:\work\train.py", r"C:\work", "train.py"),
        (r"c:\WORK\sub\Train.py", r"C:\work", "sub/Train.py"),
        (r"sub\train.py", r"C:\work", "sub/train.py"),
        (r"D:\work\train.py", r"C:\work", None),
        (r"C:\workshop\train.py", r"C:\work", None),
        (r"C:\work\..\train.py", r"C:\work", None),
        ("C:\\train.py", "C:\\", "train.py"),
    ],
)
def test_windows_paths(path, directory, expected):
    assert relative_below(path, directory, flavour=ntpath) == expected


@pytest.mark.parametrize(
    ("path", "directory", "expected"),
    [("/train.py", "/", "train.py"), ("/", "/", None), ("/work", "/work", None)],
)
def test_posix_roots(path, directory, expected):
    assert relative_below(path, directory, flavour=posixpath) == expected


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_a_path(text):
    assert isinstance(display_path(text), str)


def test_a_working_directory_that_is_gone(tmp_path):
    program = (
        "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        "from gradcheck_suite.reporting.paths import display_path\n"
        "print(display_path('/elsewhere/train.py'), display_path('train.py'))"
    )
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program, str(gone)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["/elsewhere/train.py", "train.py"]


def test_a_cell_has_the_name_that_stands_beside_it(monkeypatch):
    class Compiler:
        def format_code_name(self, name):
            return ("Cell", "In[3]") if "ipykernel" in name else None

    shell = types.SimpleNamespace(compile=Compiler())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    cell = "/tmp/ipykernel_12/3405.py"
    assert display_path(cell) == "In[3]"
    assert display_path("sub/train.py") == "sub/train.py"
    for without in (None, types.SimpleNamespace()):
        monkeypatch.setitem(
            sys.modules,
            "IPython",
            types.SimpleNamespace(get_ipython=lambda without=without: without),
        )
        assert display_path(cell) == cell
