"""Report files that can't be read, so that one of them never hides the others."""

from __future__ import annotations

import ast
import re
import warnings

from gradcheck_suite.findings import Finding, Location
from gradcheck_suite.severity import Severity

UNREADABLE_CODE = "GCS000"
UNREADABLE_SLUG = "unreadable-file"

_LIBCST_PLACE = re.compile(r"error at (\d+):(\d+)")


def unreadable(
    path: str, reason: str, *, line: int | None = None, column: int | None = None
) -> Finding:
    """Return the finding for a file that can't be read or parsed."""
    return Finding(
        code=UNREADABLE_CODE,
        rule=UNREADABLE_SLUG,
        severity=Severity.ERROR,
        message=f"this file was not linted: {reason}",
        detector="lint",
        location=Location(path, line or 1, column),
        hint="correct the file, or leave it out with `exclude`",
    )


def unparsable(path: str, source: bytes, message: str) -> Finding:
    """Return the finding for source that libcst refused with ``message``.

    Python's own parser words the error better, wherever it refuses the source as well.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        reason = f"it is not valid Python 3: {error.msg}"
        column = error.offset if error.offset and error.offset > 0 else None
        return unreadable(path, reason, line=error.lineno, column=column)
    except (ValueError, RecursionError, MemoryError):
        pass
    place = _LIBCST_PLACE.search(message)
    line, column = (int(place[1]), int(place[2]) + 1) if place else (None, None)
    reason = message.partition(": expected one of")[0]
    return unreadable(path, f"it is not valid Python 3: {reason}", line=line, column=column)
