from __future__ import annotations

import pytest


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
