"""Rules for the tests of fixes: each call of a name is a mistake with one kind of fix."""

from __future__ import annotations

import libcst as cst

from gradcheck_lint import rules
from gradcheck_lint.edits import Fix, Insertion, NewImport, Removal, Replacement
from gradcheck_lint.model.syntax import dotted_name, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue


def _argument(call):
    return call.args[0].value


def _with_insertion(call, code, name, where="before"):
    return Insertion(call, code, where), Replacement(call.func, name)


_EDITS = {
    "sum_it": lambda call, _: (Replacement(call, "a + b"),),
    "unwrap": lambda call, _: (Replacement(call, _argument(call)),),
    "risky": lambda call, _: (Replacement(call, "calm()"),),
    "drop": lambda _, statement: (Removal(statement),),
    "announce": lambda call, _: _with_insertion(call, "print('next')", "announced"),
    "follow": lambda call, _: _with_insertion(call, "if done:\n    stop()", "followed", "after"),
    "borrow": lambda call, _: (
        NewImport("torch.autograd.function", "once_differentiable"),
        Replacement(call, "once_differentiable"),
    ),
    "rewrite": lambda _, statement: (Replacement(statement, "x = 1\ny = 2"),),
    "stranger": lambda *_: (Replacement(cst.Name("elsewhere"), "x"),),
    "breaks": lambda call, _: (Replacement(call, cst.Name("class")),),
    "bursts": lambda call, _: (Insertion(call, 1),),
    "endless": lambda call, _: (Replacement(call, f"endless({len(call.args)} * 1, *a)"),),
}


def _fix_of(name, call, statement):
    edits = _EDITS.get(name)
    return Fix(edits(call, statement), f"Fix {name}", safe=name != "risky") if edits else None


class Fixable(Rule):
    """A call of a name that the tests have a fix for."""

    entry = catalogue.LEAF_INPLACE

    def check(self, function):
        """Yield every such call of the module."""
        if function.qualified_name is not None:
            return
        tree = function.module.tree
        for statement in walk(tree):
            if not isinstance(statement, cst.BaseSmallStatement):
                continue
            for call in walk(statement):
                if isinstance(call, cst.Call):
                    fix = _fix_of(dotted_name(call.func), call, statement)
                    if fix is not None:
                        yield Violation(call, "a mistake", fix=fix)


def install(monkeypatch):
    """Make this the only rule of the linter."""
    reference = rules.RuleReference("GCS101", "fixable", __name__)
    monkeypatch.setattr(rules, "RULES", (reference,))
    monkeypatch.setattr(rules, "WORDS", (b"torch",))
    monkeypatch.setattr(rules, "load_rules", lambda *_: [Fixable()])
