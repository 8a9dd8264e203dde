"""Resolve the style sheet of pictures, for viewers that know neither variables nor style sheets.

``assets/picture.css`` says once what each part of a picture style like. Pages use it as it is. In
SVG files what it says of light pictures is written to each element, as attributes that every viewer
knows; the dark colours are rules within a media query, which only browsers follow.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["asset", "attributes", "dark_on_demand", "dark_rules", "style_of"]

_BLOCK = re.compile(r"([^{}]+)\{([^{}]*)\}")
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{(.*?\})\s*\}", re.DOTALL)
_VARIABLE = re.compile(r"var\(--([a-z-]+)\)")
_NOT_FOR_SVG = frozenset({"background"})


@cache
def asset(name: str) -> str:
    """Return the text of a file that ships with the package."""
    return (
        files("gradcheck_suite.graph.render")
        .joinpath("assets")
        .joinpath(name)
        .read_text(encoding="utf-8")
    )


def _declarations(block: str) -> Iterator[tuple[str, str]]:
    for declaration in block.split(";"):
        name, colon, value = declaration.partition(":")
        if colon:
            yield name.strip(), " ".join(value.split())


def _blocks(css: str) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield the rules: selectors and declarations."""
    for selectors, block in _BLOCK.findall(css):
        yield tuple(each.strip() for each in selectors.split(",")), dict(_declarations(block))


@cache
def _themes() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the variables of light and of dark pictures."""
    css = asset("picture.css")
    dark = _DARK.search(css)
    assert dark is not None
    (_, light_values), (_, dark_values) = next(_blocks(css)), next(_blocks(dark[1]))
    return light_values, dark_values


@cache
def _rules() -> tuple[tuple[tuple[str, ...], dict[str, str]], ...]:
    """Return what is said with the variables, the weaker before the stronger."""
    _, *rules = _blocks(_DARK.sub("", asset("picture.css")))
    return tuple(rules)


def _with_values(text: str, values: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: values[f"--{found[1]}"], text)


def _matches(compound: str, tag: str, classes: frozenset[str]) -> bool:
    name, *wanted = compound.split(".")
    return name in {"", tag} and classes.issuperset(wanted)


@cache
def style_of(tag: str, classes: str = "", parent: str = "") -> Mapping[str, str]:
    """Return what an element of a light picture style like: ``{"fill": "#f5f7fa", ...}``.

    Args:
        tag: the kind of the element.
        classes: its classes, with spaces between them; "gcs" is the whole picture.
        parent: those of the element that it is in.
    """
    own, above = frozenset(classes.split()), frozenset(["gcs", *parent.split()])
    light, _ = _themes()
    style: dict[str, str] = {}
    for selectors, declarations in _rules():
        for selector in selectors:
            *outer, inner = selector.split()
            if _matches(inner, tag, own) and all(_matches(each, "", above) for each in outer):
                style |= declarations
    return {
        name: _with_values(value, light)
        for name, value in style.items()
        if name not in _NOT_FOR_SVG
    }


@cache
def attributes(tag: str, classes: str = "", parent: str = "") -> str:
    """Return ``style_of`` as attributes, with a space before each."""
    style = style_of(tag, classes, parent).items()
    return "".join(f' {name}="{value.replace(chr(34), chr(39))}"' for name, value in style)


@cache
def dark_rules() -> str:
    """Return the rules of dark pictures that differ, without variables."""
    _, dark = _themes()
    rules = []
    for selectors, declarations in _rules():
        coloured = [
            f"{name}:{_with_values(value, dark)}"
            for name, value in declarations.items()
            if _VARIABLE.search(value)
        ]
        if coloured:
            rules.append(f"{','.join(selectors)}{{{';'.join(coloured)}}}")
    return f"@media (prefers-color-scheme: dark) {{{' '.join(rules)}}}"


def dark_on_demand() -> str:
    """Return the dark colours for a reader who asks for them, and the light ones likewise."""
    return "".join(
        f':root[data-theme="{name}"] .gcs {{{";".join(map(":".join, values.items()))}}}\n'
        for name, values in zip(("light", "dark"), _themes(), strict=True)
    )
