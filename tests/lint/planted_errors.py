"""Errors that the tests plant in the linter before they start it in a process of its own."""

from __future__ import annotations

from gradcheck_lint import fixes, parsing, rewriting, suppressions
from gradcheck_lint.model import module
from gradcheck_lint.rules.step_order import missing_zero_grad


def _fail(*_, **__):
    raise ZeroDivisionError("planted\nby a test")


def plant(place):
    """Let one part of the linter raise whenever it is used."""
    owner, name = _PLACES[place]
    setattr(owner, name, _fail)


_PLACES = {
    "rule": (missing_zero_grad.MissingZeroGrad, "check"),
    "function model": (module.FunctionModel, "events"),
    "model of the file": (module.ModuleModel, "__init__"),
    "heeding of comments": (suppressions, "names_silenced"),
    "search for unused comments": (suppressions.Suppressions, "unused"),
    "writing of fixes": (rewriting, "apply_edits"),
    "choice among fixes": (fixes, "_without_overlaps"),
    "parser": (parsing, "parse"),
}


def plant_for(monkeypatch, place):
    """Plant an error for the time of one test."""
    owner, name = _PLACES[place]
    monkeypatch.setattr(owner, name, _fail)
