"""Which examples of packages a run is about, by what its command line names.

The id of an example can be given as that of a test can: ``gradcheck-suite::mypackage::layers.Net``.
Where a configuration file asks for the examples of packages, a run that names files or tests is
about those alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gradcheck_suite.settings import Settings

__all__ = ["PREFIX", "are_left_out", "selected", "settle"]

PREFIX = "gradcheck-suite::"
# Options travel to the workers of xdist's, as the arguments do.
_IDS = "gradcheck_suite_example_ids"
_ALONE = "gradcheck_suite_examples_alone"


def settle(config: pytest.Config, asked: Settings) -> None:
    """Take the ids of examples out of the arguments, where pytest would look for files."""
    option = config.option
    if hasattr(option, _ALONE) and option.gradcheck_suite_examples_alone:
        config.args[:] = []  # in a worker, which takes no argument for the whole folder
    if hasattr(option, _IDS):
        return
    ids = [argument for argument in config.args if argument.startswith(PREFIX)]
    if ids:
        config.args[:] = [argument for argument in config.args if argument not in ids]
        setattr(option, _IDS, ids)
        setattr(option, _ALONE, not config.args)
    else:
        on_the_side = not asked.subject("modules").startswith("--")
        setattr(option, _IDS, [] if on_the_side and _are_files_or_tests(config) else None)


def are_left_out(config: pytest.Config) -> bool:
    """Return whether the run is about other things than examples."""
    return getattr(config.option, _IDS, None) == []


def selected(config: pytest.Config, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Return the examples that the run is about.

    Raises:
        pytest.UsageError: there is no example of an id that was given.
    """
    ids: list[str] | None = getattr(config.option, _IDS, None)
    if ids is None:
        yield from items
        return
    unseen = set(ids)
    for item in items:
        matching = {given for given in ids if _names(given, item.nodeid)}
        unseen -= matching
        if matching:
            yield item
    if unseen:
        raise pytest.UsageError(
            f"no example is called {', '.join(sorted(unseen))}; to list them, add "
            "--collect-only to --gradcheck-suite-modules=PACKAGE"
        )


def _names(given: str, node: str) -> bool:
    # Where pytest lists tests with -v, it writes :: for each dot.
    given, node = (each.replace("::", ".") for each in (given, node))
    return node == given or node.startswith((f"{given}.", f"{given}["))


def _are_files_or_tests(config: pytest.Config) -> bool:
    if config.args_source is not config.ArgsSource.ARGS:
        return False
    folder, of_packages = config.invocation_params.dir, config.getoption("pyargs")
    return not any(
        "::" not in argument and (of_packages or os.path.isdir(folder / argument))  # noqa: PTH112 - may be no path
        for argument in config.args
    )
