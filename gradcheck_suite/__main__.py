"""``python -m gradcheck_suite`` is ``gradcheck-suite``."""

from __future__ import annotations

import sys

from gradcheck_suite.cli import main

if __name__ == "__main__":
    sys.exit(main())
