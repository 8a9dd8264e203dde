"""Every public name is documented, with each of its parameters."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

import gradcheck_suite as gs

NAMES = [name for name in gs.__all__ if name != "__version__"]
FUNCTIONS = [name for name in NAMES if name[0].islower()]


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_docstring_of_its_own(name):
    told = inspect.getdoc(getattr(gs, name))
    assert told
    assert re.match(r"[A-Z].*\.$", told.split("\n\n")[0].replace("\n", " "))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_told(name):
    function = getattr(gs, name)
    told = inspect.getdoc(function)
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.name != "self"]
    missing = [each for each in names if not re.search(rf"^ +\W*{each}: ", told, re.MULTILINE)]
    assert len(names) < 3 or missing == []


@pytest.mark.parametrize("name", [name for name in NAMES if name[0].isupper()])
def test_every_public_method_has_a_docstring(name):
    kind = getattr(gs, name)
    fields = (
        {field.name for field in dataclasses.fields(kind)}
        if dataclasses.is_dataclass(kind)
        else set()
    )
    public = {
        attribute: value
        for attribute, value in vars(kind).items()
        if not attribute.startswith("_") and (callable(value) or isinstance(value, property))
    }
    assert [
        each for each, value in public.items() if each not in fields and not inspect.getdoc(value)
    ] == []
