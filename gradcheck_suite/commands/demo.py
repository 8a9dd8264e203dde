"""``gradcheck-suite demo``: a real training script with planted mistakes, and what each part says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.commands._shared import Subparsers, add_report_options, emit

if TYPE_CHECKING:
    import argparse
