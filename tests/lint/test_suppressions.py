from __future__ import annotations

import libcst as cst
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradcheck_lint.engine import inspect_source
from gradcheck_lint.fixes import fix_source
from gradcheck_lint.rules import SLUGS
from gradcheck_lint.suppressions import Suppressions


def _count(lint, comment):
    head = "import torch\nw = torch.ones(3, requires_grad=True)\n"
    findings = lint(f"{head}w += 1{comment}\n")
    return sum(finding.code == "GCS101" for finding in findings)


@pytest.mark.parametrize(
    "comment",
    [
        "  # noqa",
        "  #noqa",
        "  # NOQA: gcs101",
        "  # noqa:E501,GCS101",
        "  # noqa: E501 GCS101",
        "  # why not  # noqa: GCS101",
        "  # noqa : GCS101 because",
        "  # gradcheck: ignore[leaf-inplace] it is meant",
        "  # gradcheck: ignore[GCS301, gcs101]",
        "  # gradcheck:ignore[ Leaf-Inplace ]",
    ],
)
def test_comment_silences(lint, comment):
    assert _count(lint, "") == 1
    assert _count(lint, comment) == 0


@pytest.mark.parametrize(
    "comment",
    [
        "  # noqa: E501",
        "  # noqa: GCS301",
        "  # noqa: GCS1",
        "  # gradcheck: ignore[missing-zero-grad]",
        "  # gradcheck: ignore[]",
        "  # gradcheck: ignore",
        "  # nobody",
        "\n# noqa",
        '; x = "# noqa"',
    ],
)
def test_comment_about_something_else_silences_nothing(lint, comment):
    assert _count(lint, comment) == 1


@pytest.mark.parametrize("line", [0, 1, 3])
def test_long_statement_is_silenced_at_its_start_its_end_and_the_reported_line(lint, line):
    lines = ["y = f(", "    w.add_(1),", "    2,", ")"]
    source = ["import torch", "w = torch.ones(3, requires_grad=True)"]
    assert len(lint("\n".join([*source, *lines]))) == 1
    lines[line] += "  # noqa: GCS101"
    assert lint("\n".join([*source, *lines])) == ()


def test_long_statement_is_not_silenced_in_its_middle(lint):
    assert lint(
        """
        import torch
        w = torch.ones(3, requires_grad=True)
        y = f(
            w.add_(1),
            2,  # noqa: GCS101
        )
        """
    )


def test_one_comment_does_not_silence_the_next_line(lint):
    (finding,) = lint(
        """
        import torch
        w = torch.ones(3, requires_grad=True)
        w += 1  # noqa
        w += 2
        """
    )
    assert finding.location.line == 4


_REASONS = (": zeroed in the engine", "- reason", " - reason", " (reason)", "(reason)", ". reason",
            "; x", ":GCS201", " # hello", "# hello", ", foo bar", " because", ",", ":", "  ", "\t!",
            " \u2014 why", "GCS", "[x]", " noqa", " #noqa: E501", "\x0cwhy")  # fmt: skip


@pytest.mark.parametrize("reason", _REASONS)
@pytest.mark.parametrize("form", ["noqa: GCS301", "gradcheck: ignore[data-write]"])
def test_unused_suppression_goes_whatever_stands_behind_it(form, reason):
    source = f"import torch\ny = 1  # {form}{reason}\n".encode()
    (finding,) = inspect_source(source, "a.py").findings
    assert finding.code == "GCS001"
    fixed = fix_source(source, "a.py")
    assert fixed.left == ()
    _, hash_sign, kept = reason.partition("#")
    line = f"y = 1  {hash_sign}{kept}" if hash_sign else "y = 1"
    assert fixed.source.decode() == f"import torch\n{line}\n"


@pytest.mark.parametrize(
    ("comment", "unused"),
    [
        ("gradcheck: ignore[GCS702]", False),  # the audit may find it here
        ("gradcheck: ignore[stuck-in-eval, data-write]", True),
        ("gradcheck: ignore[outer-broadcast]", False),  # found at run time alone
        ("noqa: GCS614", False),
        ("noqa: GCS702", True),
        ("gradcheck: ignore[stuck-in-evil]", True),
    ],
)
def test_a_comment_may_be_for_what_a_run_finds(comment, unused):
    source = f"import torch\ny = 1  # {comment}\n".encode()
    found = inspect_source(source, "a.py").findings
    assert [finding.code for finding in found] == ["GCS001"] * unused


_WORDS = st.sampled_from(
    ["#", "# ", "noqa", ":", ": ", "GCS301", "gcs101", "E501", ", ", " ", "gradcheck: ignore[",
     "]", "missing-zero-grad", "no-such-rule", "leaf-inplace", "because", "(",
      ")", ";", "-", "GCS", "\t",
     "\xe9", "\x0c", "\u2028"]
)  # fmt: skip


@given(st.lists(_WORDS, max_size=12).map("".join) | st.text(max_size=20), st.booleans())
@example("# noqa: GCS301: reason", False)
@settings(max_examples=500, deadline=None)
@pytest.mark.slow
def test_what_is_left_of_a_comment_is_a_comment_and_silences_no_more(text, is_used):
    comment = "#" + text.replace("\n", " ").replace("\r", " ")
    suppressions = Suppressions([(1, 1, cst.Comment(comment))])
    for own in suppressions._by_line.get(1, ()):
        own.used.update({"GCS101", "leaf-inplace"} & (own.names or set()) if is_used else ())
    for unused in suppressions.unused(SLUGS.values(), SLUGS):
        gone = unused.idle | unused.unknown
        left = unused.suppression.without(gone)
        assert not left or cst.Comment(left).value == left
        names = suppressions._by_line[1][0].names
        after = Suppressions([(1, 1, cst.Comment(left or "#"))])._by_line.get(1, ())
        assert frozenset().union(*(own.names for own in after)) == names - gone
