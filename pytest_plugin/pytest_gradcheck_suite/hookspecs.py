"""The hook that other plugins and conftest.py files may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from gradcheck_suite.examples import Example


def pytest_gradcheck_suite_examples(
    config: pytest.Config, package: str
) -> Iterable[Example] | dict[Any, Any]:
    """Return examples of modules and Functions of ``package``, for ``--gradcheck-suite-modules``.

    Either a dict from a class or function to ``make_inputs``, or an iterable of
    ``gradcheck_suite.examples.Example``.
    """
    raise NotImplementedError  # pragma: no cover - a specification, which pytest never calls
