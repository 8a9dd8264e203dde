"""``gradcheck-suite rules``: every mistake that the suite knows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.exit_codes import CLEAN, writing_output

if TYPE_CHECKING:
    import argparse

    from gradcheck_suite.commands._shared import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Register the command and its options."""
    parser = subparsers.add_parser(
        "rules",
        help="list every mistake that the suite knows",
        description=(
            "List every mistake that the suite knows: code, name, highest severity, where it can "
            "be found, and whether it can be fixed by machine."
        ),
    )
    parser.add_argument(
        "--output-format",
        choices=("table", "json"),
        default="table",
        help="how the list is written (default: table)",
    )
    parser.add_argument(
        "--family",
        action="append",
        choices=[family.name for family in catalogue.FAMILIES],
        metavar="FAMILY",
        help="list this family only; may be given several times: %(choices)s",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the list and return the exit status."""
    from gradcheck_suite.reporting.explain import print_rules  # noqa: PLC0415 - on demand

    wanted = arguments.family or [family.name for family in catalogue.FAMILIES]
    entries = [
        entry
        for family in catalogue.FAMILIES
        if family.name in wanted
        for entry in catalogue.entries_of(family)
    ]
    with writing_output():
        print_rules(entries, arguments.output_format, sys.stdout)
        sys.stdout.flush()
    return CLEAN
