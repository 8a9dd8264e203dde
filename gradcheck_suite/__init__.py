"""Find the autograd mistakes that raise nothing.

The names below load on first use, so that ``import gradcheck_suite`` needs neither torch nor time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gradcheck_suite._version import __version__

if TYPE_CHECKING:
    from gradcheck_suite.accumulation import check_accumulation
    from gradcheck_suite.auditing import audit
    from gradcheck_suite.errors import GradcheckSuiteError, UsageError
    from gradcheck_suite.examples import example
    from gradcheck_suite.findings import (
        Finding,
        FindingsError,
        Location,
        Related,
        Report,
        Severity,
        Verdict,
    )
    from gradcheck_suite.graph import diff_graphs, record, trace_graph
    from gradcheck_suite.verification import (
        check_gradients,
        gradcheck,
        gradgradcheck,
        localize,
    )

__all__ = [
    "Finding",
    "FindingsError",
    "GradcheckSuiteError",
    "Location",
    "Related",
    "Report",
    "Severity",
    "UsageError",
    "Verdict",
    "__version__",
    "audit",
    "check_accumulation",
    "check_gradients",
    "diff_graphs",
    "example",
    "gradcheck",
    "gradgradcheck",
    "localize",
    "record",
    "trace_graph",
]

_HOME = {
    "Finding": "gradcheck_suite.findings",
    "FindingsError": "gradcheck_suite.findings",
    "GradcheckSuiteError": "gradcheck_suite.errors",
    "Location": "gradcheck_suite.findings",
    "Related": "gradcheck_suite.findings",
    "Report": "gradcheck_suite.findings",
    "Severity": "gradcheck_suite.findings",
    "UsageError": "gradcheck_suite.errors",
    "Verdict": "gradcheck_suite.findings",
    "audit": "gradcheck_suite.auditing",
    "check_accumulation": "gradcheck_suite.accumulation",
    "check_gradients": "gradcheck_suite.verification",
    "example": "gradcheck_suite.examples",
    "gradcheck": "gradcheck_suite.verification",
    "gradgradcheck": "gradcheck_suite.verification",
    "localize": "gradcheck_suite.verification",
    "diff_graphs": "gradcheck_suite.graph",
    "record": "gradcheck_suite.graph",
    "trace_graph": "gradcheck_suite.graph",
}
_NEED_TORCH = {
    "audit",
    "check_accumulation",
    "check_gradients",
    "diff_graphs",
    "gradcheck",
    "gradgradcheck",
    "localize",
    "record",
    "trace_graph",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "torch" or name not in _NEED_TORCH:
            raise
        from gradcheck_suite.errors import MissingDependencyError  # noqa: PLC0415 - rare path

        raise MissingDependencyError(
            f"gradcheck_suite.{name} needs PyTorch, which is not installed here; "
            "install it with: pip install 'gradcheck-suite[torch]'"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
