"""Who imports whom, imports for types and inside functions included."""

from __future__ import annotations

from benchmarks.structure import circles_in, import_graph

DRAWS_ITSELF = ("gradcheck_suite.findings", "gradcheck_suite.graph.model")
"""``str(report)``, ``print(graph)`` and ``graph.save(...)`` load what draws, which knows both."""


def test_only_what_draws_itself_is_part_of_a_circle():
    imports = import_graph()
    for module in DRAWS_ITSELF:
        assert any(module in circle for circle in circles_in(imports))

    imports.remove_nodes_from(DRAWS_ITSELF)

    assert circles_in(imports) == []
