"""The sub-commands of ``gradcheck-suite``, one module each.

Each module has ``add_parser(subparsers)``, which imports nothing heavy, and
``run(arguments) -> int``, which imports the room that it opens and returns the exit status.
"""

from __future__ import annotations
