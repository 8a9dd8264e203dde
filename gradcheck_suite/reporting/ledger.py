"""Say what happened in a run: the unusual first, and the rest counted.

A ledger is plain data here, as ``report-1.schema.json`` describes it. What is drawn is a list of
sections with lines; terminals and pages show the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gradcheck_suite.findings import Location
from gradcheck_suite.reporting.concise import place
from gradcheck_suite.reporting.paths import display_path
from gradcheck_suite.reporting.text import number, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["LedgerLine", "ledger_lines", "ledger_title", "shown_paths"]

_MOST_LINES = 6
"""Lines of one kind that are listed before the others are counted: all shall fit on a screen."""

_MOST_NAMES = 4
"""Names, or patterns of names, that one line lists. Chosen, for length."""


class LedgerLine(NamedTuple):
    """One line: whose it is, and what is told of it; ``unusual`` says whether it stands out."""

    subject: str
    facts: str
    unusual: bool = False


def ledger_title(ledger: Mapping[str, Any], summary: Mapping[str, Any] | None = None) -> str:
    """Return what to write above the lines.

    Args:
        ledger: the facts.
        summary: of the report, which counts the steps of child processes and of audits inside too.
    """
    watched, steps = ledger["watched"], max((summary or {}).get("steps", 0), ledger["steps"])
    of_which = "" if watched == steps else f"{number(watched)} of "
    return f"what happened in {of_which}{plural(steps, 'step')}"


def ledger_lines(ledger: Mapping[str, Any]) -> list[LedgerLine]:
    """Return the lines for people; none where nothing has trained."""
    if not ledger["optimizers"] and not ledger["backwards"]:
        return []
    lines = [line for each in ledger["optimizers"] for line in _optimizer(each)]
    lines += _parameters(ledger)
    lines += _limited([_module(each, ledger) for each in ledger["modules"]], "module")
    lines += _limited(list(map(_backward, ledger["backwards"])), "line that runs backwards")
    lines += _functions(ledger.get("functions", ()))
    lines += _limited([_loss(each) for each in ledger["losses"]], "loss")
    return lines + _memory(ledger["memory"])


def shown_paths(facts: Any) -> Any:
    """Return plain data with each path as reports show it."""
    if isinstance(facts, dict):
        return {
            key: display_path(value) if key == "path" and isinstance(value, str)
            else shown_paths(value)
            for key, value in facts.items()
        }  # fmt: skip
    return [shown_paths(each) for each in facts] if isinstance(facts, (list, tuple)) else facts


def _limited(lines: Sequence[LedgerLine], noun: str) -> list[LedgerLine]:
    if len(lines) <= _MOST_LINES:
        return list(lines)
    more = f"and {plural(len(lines) - _MOST_LINES + 1, f'more {noun}')}"
    return [*lines[: _MOST_LINES - 1], LedgerLine("", more)]


def _optimizer(facts: Mapping[str, Any]) -> Iterator[LedgerLine]:
    name = facts["name"]
    told = [plural(facts["steps"], "step")]
    usual, *others = facts["backwards"] or [(-1, 0)]
    if usual[0] >= 0:
        told.append(f"{plural(usual[0], 'backward')} for each")
    told += _done(facts)
    yield LedgerLine(name, "; ".join(told))
    for backwards, steps in others:
        if backwards >= 0 and usual[0] >= 0:
            yield LedgerLine(
                name,
                f"{plural(steps, 'step')} used {plural(backwards, 'backward')}, the other "
                f"{number(usual[1])} {number(usual[0])} each",
                unusual=True,
            )
    for index, group in enumerate(facts["groups"]):
        if not group["parameters"]:
            yield LedgerLine(
                name, f"group {index} of {len(facts['groups'])} has no parameters", unusual=True
            )
    if not facts["cleared"] and facts["steps"] > 1:
        yield LedgerLine(name, "its gradients were never cleared by zero_grad()", unusual=True)


def _done(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield where it was stepped, cleared and so on, and how often where that is not each step."""
    words = {
        "made": "made",
        "stepped": "stepped",
        "cleared": "cleared",
        "clipped": "clipped",
        "unscaled": "unscaled",
        "scheduled": "schedule stepped",
    }
    for kind, word in words.items():
        places = [{"location": facts[kind], "count": 1}] if kind == "made" else facts[kind]
        known = [each for each in places if each["location"] is not None]
        if not known:
            continue
        where = ", ".join(dict.fromkeys(_place(each["location"]) for each in known[:2]))
        more = f" and {len(known) - 2} more" if len(known) > 2 else ""  # noqa: PLR2004 - two
        count = sum(each["count"] for each in places)
        times = "" if kind == "made" or count == facts["steps"] else f" ({number(count)} times)"
        yield f"{word} at {where}{more}{times}"


def _parameters(ledger: Mapping[str, Any]) -> list[LedgerLine]:
    """Put together the parameters of which the same is true; those that most share come last."""
    groups: defaultdict[tuple[str, bool], list[Mapping[str, Any]]] = defaultdict(list)
    for each in ledger["parameters"]:
        groups[_fate(each, ledger)].append(each)
    everybody = [each["name"] for each in ledger["parameters"]]
    lines = []
    for (fate, unusual), members in sorted(groups.items(), key=lambda pair: len(pair[1])):
        count = plural(len(members), "parameter")
        elements = sum(math.prod(each["shape"]) for each in members)
        names = _names([each["name"] for each in members], everybody)
        subject = f"{count}{f' ({names})' if names else ''}"
        lines.append(LedgerLine(subject, f"{fate}; {plural(elements, 'element')}", unusual))
    told = _limited([line for line in lines if line.unusual], "kind of parameters")
    return told + _limited([line for line in lines if not line.unusual], "kind of parameters")


def _fate(facts: Mapping[str, Any], ledger: Mapping[str, Any]) -> tuple[str, bool]:
    """Say what became of a parameter, and whether that is unusual."""
    owners, steps = facts["owners"], facts["steps"]
    told = [f"owned by {' and '.join(owners)}" if owners else "owned by no optimizer"]
    unusual = len(owners) > 1
    asked, asked_last = facts["requires_grad"], facts["requires_grad_last"]
    if asked is not asked_last:
        told.append("frozen later" if asked else "frozen at first, and not later")
        unusual = True
    elif not asked:
        told.append("frozen")
        unusual = unusual or bool(owners)
    if steps:
        told.append(_gradients(facts, ledger))
    unusual = unusual or bool(steps and asked and asked_last and not facts["with_gradient"])
    unusual = unusual or bool(asked and not owners)
    if facts["changed"] is not None:
        told.append("changed" if facts["changed"] else "unchanged")
        unusual = unusual or (facts["changed"] is bool(facts["with_gradient"] == 0))
        if not asked and not owners and not facts["changed"]:
            unusual = False
    if facts["shares_memory_with"]:
        told.append("shares memory with another")
        unusual = True
    return ", ".join(told), unusual


def _gradients(facts: Mapping[str, Any], ledger: Mapping[str, Any]) -> str:
    """Say in how many steps it had gradients, and that not all of them were looked at."""
    steps, some, zeros = facts["steps"], facts["with_gradient"], facts["with_zeros"]
    every_step = ledger["looked_at"] >= ledger["watched"]
    looked_at = f"{plural(steps, 'step')} looked at"
    if some == steps:
        return "gradients in each step" if every_step else f"gradients in each of {looked_at}"
    if not some and not zeros:
        return "never a gradient" if every_step else f"never a gradient in {looked_at}"
    kinds = [
        f"{word} in {number(count)}"
        for word, count in (
            ("gradients", some),
            ("zeros", zeros),
            ("none", steps - some - zeros),
        )
        if count
    ]
    return f"{', '.join(kinds)} of {looked_at}"


def _names(names: Sequence[str | None], everybody: Sequence[str | None]) -> str:
    """Write names short: a whole module as ``layer.*``, numbers alike as ``layer.#.weight``."""
    known = [name for name in names if name is not None]
    if not known or len(known) == len(everybody):
        return ""
    inside: Counter[str] = Counter()
    for name in everybody:
        inside.update(_prefixes(name or ""))
    mine: Counter[str] = Counter()
    for name in known:
        mine.update(_prefixes(name))
    short: dict[str, None] = {}
    for name in known:
        whole = next(
            (prefix for prefix in _prefixes(name) if mine[prefix] == inside[prefix] > 1), None
        )
        short[name if whole is None else f"{whole}.*"] = None
    patterns = Counter(re.sub(r"(?<![a-zA-Z])\d+|\d+(?=\.)", "#", name) for name in short)
    told: dict[str, None] = {}
    for name in short:
        pattern = re.sub(r"(?<![a-zA-Z])\d+|\d+(?=\.)", "#", name)
        told[name if patterns[pattern] <= _MOST_NAMES else pattern] = None
    listed = ", ".join(list(told)[:_MOST_NAMES])
    unnamed = len(names) - len(known)
    more = "" if len(told) <= _MOST_NAMES else ", ..."
    return f"{listed}{more}{f' and {unnamed} without a name' if unnamed else ''}"


def _prefixes(name: str) -> Iterator[str]:
    """Yield the modules that a name lies in, from the outermost."""
    parts = name.split(".")
    for length in range(1, len(parts)):
        yield ".".join(parts[:length])


def _module(facts: Mapping[str, Any], ledger: Mapping[str, Any]) -> LedgerLine:
    kind = "" if facts["kind"] == facts["name"] else f" ({facts['kind']})"
    ways: dict[str, list[str]] = defaultdict(list)
    for call in facts["calls"]:
        where = "" if call["location"] is None else f" at {_place(call['location'])}"
        ways[call["what"]].append(f"{number(call['count'])}{where}")
    told = "; ".join(f"{way}: {', '.join(places[:3])}" for way, places in ways.items())
    name = f"{facts['name']}{kind}"
    every_call = ledger["every_call"]
    return LedgerLine(f"{name} called" if every_call else f"calls of {name} looked at", told)


def _backward(facts: Mapping[str, Any]) -> LedgerLine:
    at = facts["place"]["location"]
    verb = "backward" if facts["accumulates"] else "autograd.grad"
    where = "" if at is None else f" at {_place(at)}"
    reached = facts["reached"]
    told = (
        f"{plural(facts['place']['count'], 'time')}, reaching {plural(reached, 'leaf', 'leaves')}"
    )
    return LedgerLine(f"{verb}{where}", told)


def _functions(facts: Sequence[Mapping[str, Any]]) -> list[LedgerLine]:
    """Name the hand-written backwards, which an audit takes to be right."""
    if not facts:
        return []
    named = [
        each["name"] + ("" if each["location"] is None else f" at {_place(each['location'])}")
        for each in facts[:_MOST_NAMES]
    ]
    more = len(facts) - len(named)
    named += [f"{number(more)} more"] if more else []
    return [
        LedgerLine(
            plural(len(facts), "hand-written backward"),
            f"{', '.join(named)}; no audit compares them with finite differences, "
            "gradcheck-suite verify does",
        )
    ]


def _loss(facts: Mapping[str, Any]) -> LedgerLine:
    """Say which terms of a loss carry a gradient, and where the others were cut off."""
    where = "" if facts["location"] is None else f" at {_place(facts['location'])}"
    live = [f"`{each['text']}`" for each in facts["terms"] if each["state"] == "live"]
    told = [f"{listed(live)} {'carries' if len(live) == 1 else 'carry'} a gradient"] if live else []
    cut = [each for each in facts["terms"] if each["state"] == "cut"]
    told += [
        f"`{each['text']}` does not"
        + ("" if each["cut"] is None else f", cut at {_place(each['cut'])} by {each['by']}")
        for each in cut
    ]
    others = len(facts["terms"]) - len(live) - len(cut)
    if others:
        told.append(
            f"{plural(others, 'term')} of which nothing is known, or which depend on no model"
        )
    return LedgerLine(f"loss of the backward{where}", "; ".join(told), unusual=bool(cut))


def listed(names: Sequence[str]) -> str:
    """Write the first few of these."""
    more = "" if len(names) <= _MOST_NAMES else f" and {len(names) - _MOST_NAMES} more"
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def _memory(facts: Mapping[str, Any]) -> list[LedgerLine]:
    alive = [count for _, count in facts["graphs_alive"]]
    if not alive:
        return []
    told = (
        f"{number(max(alive))} at most after a step, {number(alive[-1])} after the last looked at"
    )
    return [LedgerLine("graphs alive", told, unusual=alive[-1] > max(2, alive[0]))]


def _place(location: Mapping[str, Any]) -> str:
    return place(Location(**location))
