"""What an entry of the catalogue is, and how it is read from its files.

``entries/GCS101-leaf-inplace.md`` holds the facts of an entry in its front matter, its title as the
heading and its texts as sections; ``GCS101-leaf-inplace.example.py`` and ``.instead.py`` beside it
are its programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcheck_suite.severity import Severity

__all__ = ["Entry", "Family", "named"]

_SECTIONS = {"what": "What it does", "why": "Why it is bad", "detection": "How it is detected"}
_FLAGS = ("in_source", "at_run_time", "fixable")
_PROGRAMS = ("example", "instead")


@dataclass(frozen=True, slots=True)
class Entry:
    """One mistake: its name, how bad it can be, and the texts that explain it.

    ``severity`` is the highest that a finding of this entry may have; a detector with less proof
    reports less. ``in_source`` says that the mistake can be found in source text, ``at_run_time``
    that it can be found in a running program; an entry with neither is ``planned``. ``title`` is
    one line without a full stop, which names the mistake. ``what``, ``why`` and ``detection`` are
    Markdown paragraphs with an empty line between them; line breaks inside a paragraph are
    dropped. ``example`` and ``instead`` are Python source; where the mistake can be found in
    source, comments with the code mark its lines in ``example``. ``fixable`` says that a
    correction can be written by machine.
    """

    code: str
    slug: str
    severity: Severity
    in_source: bool
    at_run_time: bool
    title: str
    what: str
    why: str
    example: str
    instead: str
    detection: str
    fixable: bool = False

    def __post_init__(self) -> None:
        for name in _SECTIONS:
            object.__setattr__(self, name, _unwrapped(getattr(self, name)))

    if not TYPE_CHECKING:  # which would take every name for a field

        def __getattr__(self, name: str) -> Any:
            """Read the file that holds a field which nobody has asked for yet.

            Threads that ask at once read the same.
            """
            if name in _PROGRAMS:
                fields = {name: _read(f"{self.code}-{self.slug}.{name}.py")}
            elif name in Entry.__slots__ and name not in {"code", "slug"}:
                fields = _parsed(_read(f"{self.code}-{self.slug}.md"))
            else:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            for field, value in fields.items():
                object.__setattr__(self, field, value)
            return fields[name]

    @property
    def planned(self) -> bool:
        """Whether nothing finds the mistake yet."""
        return not (self.in_source or self.at_run_time)


@dataclass(frozen=True, slots=True)
class Family:
    """Entries that belong together, and whose codes begin alike.

    ``prefix`` is what those codes begin with ("GCS3"), ``name`` is one word for options.
    """

    name: str
    prefix: str
    title: str


def named(name: str) -> Entry:
    """Return the entry of ``entries/<name>.md``, a code and a slug; its files are not read yet."""
    entry = object.__new__(Entry)
    code, _, slug = name.partition("-")
    object.__setattr__(entry, "code", code)
    object.__setattr__(entry, "slug", slug)
    return entry


def _read(name: str) -> str:
    from pkgutil import get_data  # noqa: PLC0415 - where a text is asked for; reads wheels as well

    data = get_data(__name__, f"entries/{name}")
    if data is None:
        raise FileNotFoundError(f"the catalogue cannot read its file {name}")
    return data.decode("utf-8").replace("\r\n", "\n")


def _parsed(text: str) -> dict[str, Any]:
    """Return the fields that the Markdown file of an entry holds."""
    _, front_matter, page = text.split("---\n", 2)
    facts = dict(line.split(": ") for line in front_matter.splitlines())
    heading, *sections = page.split("\n## ")
    texts = dict(section.split("\n", 1) for section in sections)
    return {
        "severity": Severity(facts["severity"]),
        **{flag: {"true": True, "false": False}[facts[flag]] for flag in _FLAGS},
        "title": heading.strip().removeprefix("# "),
        **{field: _unwrapped(texts[title]) for field, title in _SECTIONS.items()},
    }


def _unwrapped(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).strip()
