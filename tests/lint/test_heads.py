"""What the head of a function says about who runs it."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_PROGRAM = """\
from torch import nn

class Other(nn.Module):
    def mix(self, x):
        return x

class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lift = nn.Linear(width, width)

    def {name}(
        self, x
    ):{head}
        h = self.lift(x)
        h[:, :4] = self.lift(h[:, :4])
        return h
"""


@pytest.mark.parametrize(
    "head",
    [
        "  # only for inference",
        "\n        # Write in place.\n        # Inference only.",
        '\n        """Mix.\n\n        This is used only at inference.\n        """',
        '\n        """Mix, only for evaluation."""',
    ],
    ids=["behind", "below", "docstring", "one line"],
)
def test_a_function_that_is_only_for_inference_is_left_alone(head: str) -> None:
    assert lint_source(_PROGRAM.format(head=head, name="mix").encode(), "x.py") == ()


@pytest.mark.parametrize(
    "head", ["", "  # also for inference", "\n        # For training and inference."]
)
def test_any_other_is_not(head: str) -> None:
    findings = lint_source(_PROGRAM.format(head=head, name="mix").encode(), "x.py")
    assert [finding.code for finding in findings] == ["GCS107"]


def test_what_another_function_of_the_name_says_does_not_count() -> None:
    source = _PROGRAM.format(head="", name="mix").replace(
        "        return x\n", "        # only for inference\n        return x\n", 1
    )
    assert [finding.code for finding in lint_source(source.encode(), "x.py")] == ["GCS107"]
