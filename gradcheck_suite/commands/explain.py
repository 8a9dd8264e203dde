"""``gradcheck-suite explain``: what a rule is about, with an example and its correction."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradcheck_suite._runtime.exit_codes import CLEAN, writing_output

if TYPE_CHECKING:
    import argparse

    from gradcheck_suite.commands._shared import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Register the command and its arguments."""
    parser = subparsers.add_parser(
        "explain",
        help="explain a rule: what it does, why it is bad, what to write instead",
        description=(
            "Explain rules by their code or name: what each does, why it is bad, an example, "
            "what to write instead, how it is detected and how to silence it."
        ),
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="CODE|NAME",
        help="a code (GCS101) or a name (leaf-inplace)",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the text (default: auto, which colours a terminal)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanations and return the exit status.

    Raises:
        UsageError: a name is unknown; then nothing is printed.
    """
    from gradcheck_suite.reporting.explain import print_explanation  # noqa: PLC0415 - on demand

    with writing_output():
        print_explanation(arguments.names, sys.stdout, color=arguments.color)
        sys.stdout.flush()
    return CLEAN
