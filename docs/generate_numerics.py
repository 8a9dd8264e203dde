"""Write docs/development/numerics.md from the code; with --check, only say if it is up to date."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

PAGE = Path(__file__).parent / "development" / "numerics.md"
PRODUCT = Path(__file__).parents[1] / "gradcheck_suite"
ROOMS = ("verification", "accumulation", "auditing")


_INTRODUCTION = """\
# The numbers of verification, accumulation and auditing

How verification comes to the error bound of a derivative and to its verdict, and after that every
number that a module of `gradcheck_suite/verification`, `gradcheck_suite/accumulation` and
`gradcheck_suite/auditing` sets at its top level: what it is, and why it has that value.

<!-- Written by docs/generate_numerics.py from the docstrings below the numbers; change those. -->

## How a derivative is measured

**What is compared.** A probe draws a cotangent `g` for every output and a direction `v` for some of
the variables: signs times magnitudes from 1/2 to 3/2, so that errors of single entries do not
cancel, in units of each variable's *scale*, its root mean square. A variable of zeros takes the
median scale of the others. What is extrapolated is the deviation of what outputs do from what the
gradients foretell of the displacement that the floating-point inputs really made,

    (<g, f(x + hv) - f(x - hv)> - <grad, (x + hv) - (x - hv)>) / 2h

The rounding of `x + hv` so drops out, which in float32 is most of the error.

**Extrapolation.** A ladder of ever smaller steps `h` gives a central difference each. Its
truncation error has even powers of `h` alone, and is removed order by order (Richardson 1911). Of
the extrapolation table that entry is taken which its neighbours bear out best (Ridders, "Accurate
computation of F'(x) and F'(x)F''(x)", Advances in Engineering Software 4, 1982). One from coarse
steps that finer steps contradict is dropped: the function then has structure, such as a kink near
by, that the coarse steps strode over.

**Its error** is the sum of three parts, all of them measured:

- *truncation*: the disagreement of the entry with its neighbours in the table;
- *rounding*: eps times the size of the weighted outputs, and what two calls at one point were seen
  to differ by, over the step; and the noise that still smaller steps show;
- *kinks*: the second difference over the step, `(f(x + hv) - 2 f(x) + f(x - hv)) / h`, vanishes
  with the step where the function is smooth; the line through two steps leaves at zero what a kink
  contributes.

The *tolerance* of a measurement is `SAFETY` times that error and `SAFETY` times the rounding of the
analytic side: eps times the size of its terms, and for suspects what the last bits of inputs and of
intermediate results were seen to do to it. `z` is the deviation in tolerances.

**The decision** asks for what `Precision` says of the type: `resolution` is the largest relative
error that a pass may hide, `rtol` the smallest that counts as wrong, `zero` the size relative to
the output under which a derivative passes as zero, `target` the tolerance at which no further steps
are taken, `linearity` the relative difference from which on backward counts as not linear, `steps`
the ladder, of which `first` are taken before the first look, `move` how far a point beside a kink
lies, `probes` how many there are by default.

- *pass*: `z <= 1`, with a tolerance of at most `resolution` of the variable's part, or next to
  nothing against the output (`zero`) where that part is as good as zero;
- *fail*: `z >= CLEARLY` for a variable by itself and a relative deviation of `rtol` at least, in
  `_FEWEST_FAILURES` independent probes and in more than speak against it;
- *inconclusive*: all else, with the part of the error that is largest as the reason.

What looks wrong is measured again: other directions and cotangents, a point close by, steps in
proportion to each entry, inputs that differ in their last bit and, in float32, much smaller steps.
A function that is made of steps, has a kink exactly at the point, or is rounding noise there, so
comes out as inconclusive.

## Many float32 probes in one regression

In float32 a kink costs a probe most of its digits. Which kinks a probe meets is chance, and over
many random directions their parts cancel. `D`, what outputs changed beyond `F`, which the gradients
foretell, is fitted by the parts of `F` by least squares: where the gradients are right the slopes
are zero. Their errors count each probe with what the fit left of it (White 1980). Kinks leave a
slope of `-3/2 K**2`, where `K**2` is measured along with it and grows like the step `h`; curvature
leaves at most `4/3` of that for powers `x**p` with p from 1/2 down, and grows like `h**2`; errors
of a gradient do not grow at all. So a slope counts only beyond twice `3/2 K**2` and beyond `_FAILS`
standard errors, only if it does not grow as kinks and curvature do at `RATIO` times the step, and
only if probes of their own show it again at a point close by. The derivation stands in
`verification/numerics/regression.py`.

Where the function runs in float64 as well and has the same values there, and the difference of both
functions has next to no slope, the derivative is measured in float64 first. What is judged is still
the gradient that the function's own backward gave.

## Half precision

Two or three digits leave no single probe a derivative. `P` cotangents and `Q` directions make `P*Q`
probes for `P` backwards and `Q` pairs of evaluations; standard errors allow for the directions and
the cotangents that probes share (A. C. Cameron, J. B. Gelbach, D. L. Miller, "Robust inference with
multiway clustering", 2011). Slopes at two widths of steps are extrapolated to zero, as curvature
goes or as kinks do, whichever is nearer to zero. Where the function runs in float64 too, what it
changes there beyond its slope is taken off what is seen, so that rounding alone is left to scatter
(a control variate).

## Whole Jacobians, and single entries

Entries are measured at one step, the root of third order of eps, which balances truncation and
rounding of a central difference. What differs by more than rounding is measured at two more steps.
Values that close are subtracted without rounding (Sterbenz 1974). Columns that reach different
outputs are measured together (Curtis, Powell and Reid, "On the estimation of sparse Jacobian
matrices", 1974), others are confirmed in groups by random combinations (R. Freivalds,
"Probabilistic machines can use less running time", 1977). One wrong entry is found by halving; how
many there are is counted on a sample, or told by random groups (Dorfman 1943).

## How to read the reasons

A reason is a derivation (from eps, a count of bits, a quantile of the normal distribution), a
measurement, *a bound on cost* or on memory, which changes what is looked at and never what is
right, or *chosen*: by judgement, for the reason given; how far it could move was not measured.
Numbers of roundings are in units of eps, the distance of 1 to the next number. "Standard errors"
assume normal noise. Streams and seeds keep random draws apart; their values mean nothing.
"""


@dataclass(frozen=True, slots=True)
class Number:
    """A number, or a few that belong together, which a module sets at its top level.

    Attributes:
        module: the file, relative to the package.
        line: where.
        names: one, or several that are set at once.
        value: as it is written.
        reason: the docstring below it; empty where there is none.
    """

    module: str
    line: int
    names: tuple[str, ...]
    value: str
    reason: str


def numbers_of(source: str, module: str) -> Iterator[Number]:
    """Yield the numbers that a module sets at its top level, in order."""
    body = ast.parse(source).body
    known: set[str] = set()
    for statement, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if not _is_number(value, known):
            continue
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names = tuple(ast.unparse(part) for part in parts)
        known.update(names)
        written = " ".join((ast.get_source_segment(source, value) or "").split())
        written = written.replace("( ", "(").replace("{ ", "{").replace(", )", ")")
        written = written.replace(", }", "}")
        yield Number(module, statement.lineno, names, written, _docstring(below))


def _is_number(value: ast.expr, known: Collection[str]) -> bool:
    """Return whether an expression is made of numbers, and of names of numbers set above it."""
    parts: list[ast.expr] = []
    match value:
        case ast.Constant():
            return isinstance(value.value, (int, float)) and not isinstance(value.value, bool)
        case ast.Name():
            return value.id in known
        case ast.Call(func=ast.Name(id="Precision" | "replace")):
            return True  # a table of numbers by keyword
        case ast.UnaryOp(operand=part) | ast.Starred(value=part):
            parts = [part]
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Dict(values=elements):
            parts = elements
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math")), args=arguments):
            parts = arguments
    return bool(parts) and all(_is_number(part, known) for part in parts)


def _docstring(below: ast.stmt | None) -> str:
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
        text = below.value.value
        return " ".join(text.split()) if isinstance(text, str) else ""
    return ""


def numbers() -> Iterator[Number]:
    """Yield the numbers of all rooms, module by module."""
    for room in ROOMS:
        for path in sorted((PRODUCT / room).rglob("*.py")):
            module = path.relative_to(PRODUCT).as_posix()
            yield from numbers_of(path.read_text("utf-8"), module)


def page() -> str:
    """Return the whole page as Markdown."""
    parts = [_INTRODUCTION]
    found = list(numbers())
    for room in ROOMS:
        parts.append(f"## gradcheck_suite/{room}\n")
        of_room = (number for number in found if number.module.startswith(f"{room}/"))
        for module, members in groupby(of_room, key=lambda number: number.module):
            parts.append(_table(module, members))
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or check it, and return the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"usage: {Path(__file__).name} [--check]\n")
        return 2
    text = page()
    if not arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text, encoding="utf-8", newline="\n")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{PAGE} is out of date; run: python docs/{Path(__file__).name}\n")
    return 1


def _table(module: str, members: Iterable[Number]) -> str:
    lines = [f"### {module}", "", "| name | value | what and why |", "|---|---|---|"]
    for number in members:
        names = ", ".join(f"`{name}`" for name in number.names)
        cells = (names, f"`{number.value}`", number.reason.replace("``", "`"))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
