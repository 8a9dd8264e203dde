from __future__ import annotations

import os
import stat
from pathlib import Path

import libcst as cst
import pytest

from gradcheck_lint.edits import Insertion, Removal, Replacement
from gradcheck_lint.files import replace_source
from gradcheck_lint.fixes import fix_source, unified_diff
from gradcheck_lint.rewriting import ImpossibleEditError, apply_edits
from tests.lint import fake_rules


@pytest.fixture
def fix(monkeypatch):
    """Fix source by the rules of the tests, and check that a second run changes nothing."""
    fake_rules.install(monkeypatch)

    def run(source, *, unsafe=False):
        head = "import torch\n"
        fixed = fix_source((head + source).encode(), "x.py", unsafe=unsafe)
        again = fix_source(fixed.source, "x.py", unsafe=unsafe)
        assert (again.source, again.fixed) == (fixed.source, ())
        return fixed.source.decode().removeprefix(head)

    return run


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = sum_it()\n", "x = a + b\n"),
        ("x = 2 * sum_it() ** 2\n", "x = 2 * (a + b) ** 2\n"),
        ("x = sum_it().T\n", "x = (a + b).T\n"),
        ("x = f(sum_it(), k=sum_it())[sum_it()]\n", "x = f(a + b, k=a + b)[a + b]\n"),
        ("x = (sum_it())\n", "x = (a + b)\n"),
        ("x   =  unwrap( y )  # why\n", "x   =  y  # why\n"),
        ("x = unwrap(unwrap(unwrap(y)))\n", "x = y\n"),
        ("x = unwrap(sum_it()) * 3\n", "x = (a + b) * 3\n"),
        ("if a:\n    drop()\n", "if a:\n    pass\n"),
        ("if a:\n    drop()\n    # note\n    b()\n", "if a:\n    # note\n    b()\n"),
        ("drop(); y = 1\n", "y = 1\n"),
        ("\n# about it\nannounce()\n", "\nprint('next')\n# about it\nannounced()\n"),
        ("if a: announce()\n", "if a: print('next'); announced()\n"),
        ("y = 1; announce()\n", "y = 1; print('next'); announced()\n"),
        ("if a:\n\tfollow()\nb()\n", "if a:\n\tfollowed()\n\tif done:\n\t\tstop()\nb()\n"),
        ("rewrite()  # kept\n", "x = 1\ny = 2  # kept\n"),
        ("if a: rewrite()\n", "if a: x = 1; y = 2\n"),
        ("x = risky()\n", "x = risky()\n"),
        ("x = stranger() + unwrap(y)\n", "x = stranger() + y\n"),
        ("x = breaks()\nz = unwrap(y)\n", "x = breaks()\nz = y\n"),
        ("if a: follow()\n", "if a: follow()\n"),
        ("x = unwrap(\n    y,  # the reason\n)\n", "x = unwrap(\n    y,  # the reason\n)\n"),
        ("w += unwrap(y)  # noqa: GCS101\n", "w += unwrap(y)  # noqa: GCS101\n"),
    ],
)
def test_safe_fixes_keep_everything_else(fix, before, after):
    assert fix(before) == after


def test_unsafe_fixes_need_asking_for(fix):
    assert fix("x = risky() + unwrap(y)\n") == "x = risky() + y\n"
    assert fix("x = risky() + unwrap(y)\n", unsafe=True) == "x = calm() + y\n"


def test_fix_that_loses_a_comment_is_unsafe(fix):
    source = "x = unwrap(\n    y,  # the reason\n)\n"
    assert fix(source, unsafe=True) == "x = y\n"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("import torch\nx = borrow()\ny = borrow()\n", "import torch\nfrom {}\nx = {n}\ny = {n}\n"),
        ('"""Doc."""\n\nimport torch\n\nx = borrow()\n',
         '"""Doc."""\n\nimport torch\nfrom {}\n\nx = {n}\n'),
        ('"""Doc of torch."""\n\nx = borrow()\n', '"""Doc of torch."""\n\nfrom {}\nx = {n}\n'),
        ("from {}\nx = borrow(torch)\n", "from {}\nx = {n}\n"),
        ("# torch\nx = borrow()\n", "# torch\nfrom {}\nx = {n}\n"),
    ],
)  # fmt: skip
def test_import_is_added_once_behind_the_others(monkeypatch, head, expected):
    fake_rules.install(monkeypatch)
    line = {"n": "once_differentiable"}
    words = "torch.autograd.function import once_differentiable"
    before, after = (text.format(words, **line) for text in (head, expected))
    assert fix_source(before.encode(), "x.py").source.decode() == after


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_encoding_mark_and_line_ends_are_kept(monkeypatch, encoding, newline):
    fake_rules.install(monkeypatch)
    declared = encoding.removesuffix("-sig")

    def text(call):
        lines = f"# coding: {declared}\nimport torch\nif café:\n    {call}\n"
        return lines.replace("\n", newline).encode(encoding)

    assert fix_source(text("announce()"), "x.py").source == text("print('next')\n    announced()")


def test_no_newline_at_the_end_stays_so(fix):
    assert fix("x = unwrap(y)") == "x = y"


def test_fix_that_never_settles_ends(monkeypatch):
    fake_rules.install(monkeypatch)
    fixed = fix_source(b"import torch\nx = endless()\n", "x.py")
    assert b"endless" in fixed.source


def test_unused_suppressions_are_taken_away(monkeypatch):
    source = (
        b"import torch\n"
        b"x = 1  # noqa: GCS101, E501\n"
        b"y = 2  # gradcheck: ignore[data-write] the reason\n"
        b"# gradcheck: ignore[legacy-variable]\n"
        b"z = 3  # about z  # noqa: GCS301\n"
    )
    fixed = fix_source(source, "x.py")
    assert fixed.source == (b"import torch\nx = 1  # noqa: E501\ny = 2\nz = 3  # about z\n")
    assert [finding.rule for finding in fixed.fixed] == ["unused-suppression"] * 4


def test_edits_that_do_not_fit_are_refused():
    tree = cst.parse_module("if a: f()\n")
    call = tree.body[0].body.body[0].value
    for edits in (
        [Replacement(cst.Name("x"), "y")],
        [Replacement(call, "x"), Replacement(call, "y")],
        [Insertion(call, "if x:\n    pass\n")],
        [Insertion(tree, "x = 1")],
        [Replacement(call, "x = 1")],
        [Replacement(tree.body[0].whitespace_before_test, "x")],
        [Removal(call)],
    ):
        with pytest.raises(ImpossibleEditError):
            apply_edits(tree, edits)


def test_diff_is_what_patch_reads():
    assert unified_diff(b"a\nb", b"a\nc\n", "x.py") == (
        "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
    )
    assert unified_diff(b"a\n", b"a\n", "x.py") == ""


def test_file_is_replaced_with_its_permissions(tmp_path):
    path = tmp_path / "x.py"
    path.write_bytes(b"old")
    path.chmod(0o750)
    replace_source(str(path), old=b"old", new=b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert list(tmp_path.iterdir()) == [path]


def test_link_stays_a_link_and_never_leads_outside(tmp_path, monkeypatch):
    inside = tmp_path / "project"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for target, link in ((inside / "real.py", "near.py"), (tmp_path / "far.py", "out.py")):
        target.write_bytes(b"old")
        Path(link).symlink_to(target)
    replace_source("near.py", old=b"old", new=b"new")
    assert Path("near.py").is_symlink()
    assert Path("real.py").read_bytes() == b"new"
    with pytest.raises(OSError, match="symbolic link to"):
        replace_source("out.py", old=b"old", new=b"new")
    assert (tmp_path / "far.py").read_bytes() == b"old"


@pytest.mark.parametrize("problem", ["read-only", "changed", "no room"])
def test_file_that_can_not_be_replaced_stays_as_it_was(tmp_path, monkeypatch, problem):
    path = tmp_path / "x.py"
    path.write_bytes(b"old")
    if problem == "read-only":
        path.chmod(0o444)
    elif problem == "no room":

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=problem if problem != "no room" else "No space"):
        replace_source(str(path), old=b"was" if problem == "changed" else b"old", new=b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
