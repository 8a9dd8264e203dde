"""Count what a newcomer has to hold: lines, modules that only a neighbour uses, import circles.

python -m benchmarks.structure              # all of the product but the linter
python -m benchmarks.structure --names      # and which modules those are
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
import networkx as nx  # type: ignore[import-untyped]  # has no types

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).parents[1]
_PACKAGES = {
    "gradcheck_suite": _ROOT / "gradcheck_suite",
    "pytest_gradcheck_suite": _ROOT / "pytest_plugin" / "pytest_gradcheck_suite",
}
_REGISTRIES = (
    "gradcheck_suite.auditing.detectors.registry",
    "gradcheck_suite.auditing.instrumentation.install",
    "gradcheck_suite.graph.save",
    "gradcheck_suite.verification.stages.input_variations.stage",
    "pytest_gradcheck_suite.plugin",
    # A command that pip installs goes by the module that has it.
    "gradcheck_suite.__main__",
)
"""Modules that name all of a kind, as what they list is no part of them."""
_DATA = ("entries", "_examples")
"""Folders of programs that the product shows and does not run as its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--names", action="store_true", help="name the modules")
    arguments = parser.parse_args(argv)
    files = [
        file
        for folder in _PACKAGES.values()
        for file in folder.rglob("*.py")
        if not set(_DATA).intersection(file.parts)
    ]
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    imports = import_graph()
    lonely = sorted(modules_of_one_neighbour(imports))
    circles = [sorted(circle) for circle in circles_in(imports)]
    print(f"Python outside the linter: {lines:,} lines in {len(files)} files")
    print(f"modules that one neighbour alone uses: {len(lonely)}")
    if arguments.names:
        print(*(f"    {module} <- {user}" for module, user in lonely), sep="\n")
    print(f"import circles, imports for types and in functions included: {len(circles)}")
    for circle in circles:
        print(f"    {len(circle)} modules, {circle[0]} among them")
        if arguments.names:
            print(*(f"        {module}" for module in circle), sep="\n")
    return 0


def import_graph() -> nx.DiGraph:
    """Return who imports whom, wherever in a file the import stands."""
    found = grimp.build_graph(*_PACKAGES, cache_dir=None)
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(found.modules)
    for module in found.modules:
        used = found.find_modules_directly_imported_by(module)
        graph.add_edges_from((module, other) for other in used)
    return graph


def modules_of_one_neighbour(imports: nx.DiGraph) -> list[tuple[str, str]]:
    """Return each module, with its user, that one module beside it imports and no other."""
    packages = {module.rpartition(".")[0] for module in imports}
    found = []
    for module in imports:
        users = list(imports.predecessors(module))
        if len(users) == 1 and module not in packages:
            (user,) = users
            is_beside = user.rpartition(".")[0] == module.rpartition(".")[0]
            if is_beside and user not in _REGISTRIES:
                found.append((module, user))
    return found


def circles_in(imports: nx.DiGraph) -> list[set[str]]:
    """Return the sets of modules that reach one another."""
    return [part for part in nx.strongly_connected_components(imports) if len(part) > 1]


if __name__ == "__main__":
    sys.exit(main())
