from __future__ import annotations

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from gradcheck_lint import positions
from gradcheck_lint.model.syntax import walk
from gradcheck_lint.positions import Positions

_SOURCE = '''\
# a comment
import torch


@decorated(
    1
)
class A(B):
    """Doc."""

    async def f(self, *args, **kwargs):
        x = (  # another
            torch.ones(3)
            .add_(1)
        )[0]; y = "é"; z = [i for i in (y)]
        for (a, b) in zip(x, y):
            if not (a): continue
            elif b: w[0] += 1
        else:
            await g(f"{a!r}")
\t
        return lambda q: (q,)
'''


def test_every_node_has_the_place_that_libcst_gives_it():
    wrapper = MetadataWrapper(cst.parse_module(_SOURCE), unsafe_skip_copy=True)
    nodes = [
        node
        for node in walk(wrapper.module)
        if isinstance(node, (cst.BaseExpression, cst.BaseSmallStatement, cst.BaseCompoundStatement))
    ]
    expected = wrapper.resolve(PositionProvider)
    found = Positions(wrapper.module, nodes)
    assert len(nodes) > 50
    for node in nodes:
        place, range_ = found.location(node, "x.py", None), expected[node]
        assert (place.line, place.column) == (range_.start.line, range_.start.column + 1)
        assert (place.end_line, place.end_column) == (range_.end.line, range_.end.column + 1)


def test_only_the_wanted_nodes_are_looked_for():
    module = cst.parse_module("a = b\nc = d\n")
    wanted = module.body[1].body[0].value
    place = Positions(module, [wanted]).location(wanted, "x.py", "f")
    assert (place.line, place.column, place.end_column, place.function) == (2, 5, 6, "f")


def test_comments_have_their_lines():
    module = cst.parse_module(_SOURCE)
    comments = [(line, column, node.value) for line, column, node in Positions(module, []).comments]
    assert comments == [(1, 1, "# a comment"), (12, 16, "# another")]


def test_statement_lines_are_the_first_and_the_last_of_the_statement():
    module = cst.parse_module("if a:\n    x = f(\n        1,\n        g(2),\n    )\n")
    call = next(
        node for node in walk(module) if isinstance(node, cst.Call) and node.func.value == "g"
    )
    assert Positions(module, [call]).statement_lines(call) == {2, 4, 5}


def test_libcst_without_its_private_parts_gives_the_same(monkeypatch):
    module = cst.parse_module(_SOURCE)
    nodes = [node for node in walk(module) if isinstance(node, cst.BaseExpression)]
    quick = Positions(module, nodes)

    def changed(*_):
        raise AttributeError("_codegen")

    monkeypatch.setattr(positions, "_measure_quickly", changed)
    public = Positions(module, nodes)
    for node in nodes:
        assert public.location(node, "x.py", None) == quick.location(node, "x.py", None)
        assert public.statement_lines(node) == quick.statement_lines(node)
    assert public.comments == quick.comments
