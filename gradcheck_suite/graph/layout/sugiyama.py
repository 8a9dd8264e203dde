"""Lay boxes out in layers, after Sugiyama, Tagawa and Toda (1981).

Each box gets a rank by the longest way to it; edges over several ranks bend round what lies between
at points of their own; sweeps order each rank by the mean place of its neighbours; and each rank is
then moved as near to its neighbours as the order and the gaps allow, which is a least-squares
problem with ordered unknowns (pool adjacent violators, Ayer et al. 1955).

The viewer in HTML files lays out anew when a box is opened, in JavaScript. What both do, step by
step and in which order of arithmetic, is specified in ``docs/development/graph-layout.md``; a test
feeds both the same graphs. So no ``sum`` of floats here, which Python compensates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Arc", "Placed", "layered"]

_GAP_X = 18.0
_GAP_BEND = 10.0
_GAP_Y = 30.0
_GAP_PORT = 10.0
_BENDS_AT_MOST = 120_000
_ORDER_SWEEPS = 8
_PLACE_SWEEPS = 10
_COUNT_CROSSINGS_UP_TO = 6_000
_BEND_WEIGHT = 4.0

_Neighbour: TypeAlias = "tuple[int, float, float, float]"


@dataclass(frozen=True, slots=True)
class Arc:
    """An edge from box ``source`` to box ``target``.

    Arcs of one ``net`` end at the same point, and share their way as soon as they can.
    ``source_shift`` and ``target_shift`` are how far from the middle of a box the arc is attached.
    """

    source: int
    target: int
    net: int
    source_shift: float = 0.0
    target_shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Placed:
    """Boxes in their places: ``x`` is the middle, ``y`` the top.

    ``segments`` are, for each net, the pieces of its way as (x1, y1, x2, y2), downwards but for
    arcs against the order.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    ranks: tuple[int, ...]
    segments: dict[int, list[tuple[float, float, float, float]]]
    width: float
    height: float


def layered(
    sizes: Sequence[tuple[float, float]],
    arcs: Sequence[Arc],
    *,
    top: Sequence[int] = (),
    bottom: Sequence[int] = (),
) -> Placed:
    """Place boxes of these sizes (width, height).

    Args:
        sizes: of each box. Its number is its place here.
        arcs: each source and target differ. Cycles are laid out with one arc upwards.
        top: boxes that go above all others: the places where arcs come in from outside.
        bottom: boxes that go below all others: the places where arcs leave.
    """
    state = _Layers(sizes, arcs, set(top), set(bottom))
    state.rank()
    state.bend()
    state.order()
    state.place()
    return state.placed()


class _Layers:
    def __init__(
        self,
        sizes: Sequence[tuple[float, float]],
        arcs: Sequence[Arc],
        top: set[int],
        bottom: set[int],
    ) -> None:
        self.count = len(sizes)
        self.widths = [size[0] for size in sizes]
        self.heights = [size[1] for size in sizes]
        self.arcs = arcs
        self.top = top
        self.bottom = bottom

    def _topological(self) -> list[int]:
        """Order the boxes along the arcs; in a cycle, go on at its first box."""
        count = self.count
        after: list[list[int]] = [[] for _ in range(count)]
        waiting = [0] * count
        for arc in self.arcs:
            after[arc.source].append(arc.target)
            waiting[arc.target] += 1
        order: list[int] = []
        done = [not waits for waits in waiting]
        queue = [box for box in range(count) if done[box]]
        read = 0
        forced = 0
        while len(order) < count:
            if read == len(queue):
                while done[forced]:
                    forced += 1
                done[forced] = True
                queue.append(forced)
            box = queue[read]
            read += 1
            order.append(box)
            for target in after[box]:
                waiting[target] -= 1
                if not waiting[target] and not done[target]:
                    done[target] = True
                    queue.append(target)
        return order

    def rank(self) -> None:
        """Give each box its rank, the arcs' direction being that of a topological order."""
        count = self.count
        order = self._topological()
        place = [0] * count
        for position, box in enumerate(order):
            place[box] = position
        # Downward arcs only, from here on: (upper, lower, net, shift of upper, shift of lower).
        self.links = [
            (arc.source, arc.target, arc.net, arc.source_shift, arc.target_shift)
            if place[arc.source] < place[arc.target]
            else (arc.target, arc.source, -1 - arc.net, arc.target_shift, arc.source_shift)
            for arc in self.arcs
        ]
        below: list[list[int]] = [[] for _ in range(count)]
        has_above = [False] * count
        for upper, lower, _, _, _ in self.links:
            below[upper].append(lower)
            has_above[lower] = True
        first = 1 if self.top else 0
        ranks = [0 if box in self.top else first for box in range(count)]
        for box in order:
            for lower in below[box]:
                ranks[lower] = max(ranks[lower], ranks[box] + 1)
        for box in reversed(order):
            if not has_above[box] and box not in self.top and below[box]:
                ranks[box] = min(ranks[lower] for lower in below[box]) - 1
        if self.bottom:
            last = first
            for box in range(count):
                if box not in self.bottom:
                    last = max(last, ranks[box])
            for box in self.bottom:
                ranks[box] = max(last + 1, 1)
        self.ranks = ranks

    def bend(self) -> None:
        """Give long arcs a bend in each rank that they pass, one for all arcs of a net."""
        count = self.count
        uppermost: dict[tuple[int, int], int] = {}
        for upper, lower, net, _, _ in self.links:
            key = (net, lower)
            uppermost[key] = min(uppermost.get(key, self.ranks[upper]), self.ranks[upper])
        total = 0
        for (_, lower), rank in uppermost.items():
            total += self.ranks[lower] - rank - 1
        self.is_bend = [False] * count
        self.rank_of = list(self.ranks)
        # For each box its neighbours: which, how far it should be from them, where on them the
        # arc is attached (from -0.5, their left border, to 0.5), and how far from its own middle.
        self.above: list[list[_Neighbour]] = [[] for _ in range(count)]
        self.below: list[list[_Neighbour]] = [[] for _ in range(count)]
        # (upper, lower, net, shift of upper, shift of lower), between neighbouring ranks.
        self.steps: list[tuple[int, int, int, float, float]] = []
        self.straight: list[tuple[int, int, int, float, float]] = []
        chains: dict[tuple[int, int], dict[int, int]] = {}
        bends_left = _BENDS_AT_MOST
        self.known: set[tuple[int, int, int]] = set()
        for upper, lower, net, upper_shift, lower_shift in self.links:
            start, end = self.ranks[upper], self.ranks[lower]
            chain = chains.setdefault((net, lower), {})
            if end - start > 1 and total > _BENDS_AT_MOST and end - start > bends_left:
                self.straight.append((upper, lower, net, upper_shift, lower_shift))
                continue
            previous, shift = upper, upper_shift
            for rank in range(start + 1, end):
                bend = chain.get(rank)
                if bend is None:
                    bend = len(self.is_bend)
                    chain[rank] = bend
                    bends_left -= 1
                    self.is_bend.append(True)
                    self.rank_of.append(rank)
                    self.widths.append(0.0)
                    self.heights.append(0.0)
                    self.above.append([])
                    self.below.append([])
                self._step(previous, bend, net, shift, 0.0)
                previous, shift = bend, 0.0
            self._step(previous, lower, net, shift, lower_shift)

    def _step(
        self, upper: int, lower: int, net: int, upper_shift: float, lower_shift: float
    ) -> None:
        if (upper, lower, net) in self.known:
            return
        self.known.add((upper, lower, net))
        self.steps.append((upper, lower, net, upper_shift, lower_shift))
        on_lower = lower_shift / (self.widths[lower] + 1.0)
        on_upper = upper_shift / (self.widths[upper] + 1.0)
        self.below[upper].append((lower, lower_shift - upper_shift, on_lower, upper_shift))
        self.above[lower].append((upper, upper_shift - lower_shift, on_upper, lower_shift))

    def _first_rows(self) -> list[list[int]]:
        """Fill the ranks in the order in which boxes are met on the way down."""
        total = len(self.is_bend)
        last = 0
        for box in range(total):
            last = max(last, self.rank_of[box])
        rows: list[list[int]] = [[] for _ in range(last + 1)]
        seen = [False] * total
        for start in range(self.count):
            stack = [start]
            while stack:
                box = stack.pop()
                if seen[box]:
                    continue
                seen[box] = True
                rows[self.rank_of[box]].append(box)
                stack += [near[0] for near in reversed(self.below[box]) if not seen[near[0]]]
        return rows

    def order(self) -> None:
        """Order each rank so that few arcs cross."""
        rows = self.rows = self._first_rows()
        place = [0] * len(self.is_bend)
        for row in rows:
            for position, box in enumerate(row):
                place[box] = position
        count_crossings = len(self.steps) <= _COUNT_CROSSINGS_UP_TO
        best = [list(row) for row in rows]
        fewest = self._crossings(place) if count_crossings else 1
        for sweep in range(_ORDER_SWEEPS):
            if not fewest:
                break
            down = sweep % 2 == 0
            for number in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
                self._sort(rows[number], place, self.above if down else self.below)
            if count_crossings:
                crossings = self._crossings(place)
                if crossings < fewest:
                    fewest = crossings
                    best = [list(row) for row in rows]
        if count_crossings:
            self.rows = best

    @staticmethod
    def _sort(row: list[int], place: list[int], neighbours: Sequence[Sequence[_Neighbour]]) -> None:
        """Sort a rank by the mean place of each box's neighbours in the rank beside it."""
        means: dict[int, float] = {}
        for box in row:
            near = neighbours[box]
            total = 0.0
            for other, _, attached, _ in near:
                total += place[other] + attached
            means[box] = total / len(near) if near else float(place[box])
        row.sort(key=means.__getitem__)
        for position, box in enumerate(row):
            place[box] = position

    def _crossings(self, place: Sequence[int]) -> int:
        """Count the crossings between neighbouring ranks (Barth, Jünger and Mutzel 2002)."""
        crossings = 0
        for number in range(len(self.rows) - 1):
            ends: list[int] = []
            for box in self.rows[number]:
                near = sorted((own, place[lower]) for lower, _, _, own in self.below[box])
                ends += [end for _, end in near]
            size = len(self.rows[number + 1])
            tree = [0] * (size + 1)
            for counted, end in enumerate(ends):
                index = end + 1
                smaller = 0
                while index:
                    smaller += tree[index]
                    index -= index & -index
                crossings += counted - smaller
                index = end + 1
                while index <= size:
                    tree[index] += 1
                    index += index & -index
        return crossings

    def place(self) -> None:
        """Move boxes sideways, as near to their neighbours as order and gaps allow."""
        total = len(self.is_bend)
        self.x = [0.0] * total
        self.seat = [0] * total
        offsets: list[list[float]] = []
        for row in self.rows:
            offset = 0.0
            offsets_of_row: list[float] = []
            for position, box in enumerate(row):
                if position:
                    left = row[position - 1]
                    bends = self.is_bend[left] or self.is_bend[box]
                    offset += (self.widths[left] + self.widths[box]) / 2
                    offset += _GAP_BEND if bends else _GAP_X
                offsets_of_row.append(offset)
                self.x[box] = offset
            offsets.append(offsets_of_row)
        last = len(self.rows) - 1
        for sweep in range(_PLACE_SWEEPS):
            down = sweep % 2 == 0
            numbers = range(1, last + 1) if down else range(last - 1, -1, -1)
            for number in numbers:
                near = self.above if down else self.below
                self._place_row(self.rows[number], offsets[number], near)
        # Last, let the upper boxes come to the middle of what hangs on them.
        for number in range(last, -1, -1):
            self._place_row(self.rows[number], offsets[number], self.below)

    def _place_row(
        self,
        row: Sequence[int],
        offsets: Sequence[float],
        neighbours: Sequence[Sequence[_Neighbour]],
    ) -> None:
        sums: list[float] = []
        weights: list[float] = []
        counts: list[int] = []
        for position, box in enumerate(row):
            near = neighbours[box]
            weight = 1.0
            if near:
                wanted = 0.0
                for other, shift, _, _ in near:
                    wanted += self.x[other] + shift
                wanted /= len(near)
                if self.is_bend[box]:
                    weight = _BEND_WEIGHT
            else:
                wanted = self.x[box]
                weight = 0.25
            sums.append((wanted - offsets[position]) * weight)
            weights.append(weight)
            counts.append(1)
            while len(sums) > 1 and sums[-2] / weights[-2] > sums[-1] / weights[-1]:
                moved, weight, size = sums.pop(), weights.pop(), counts.pop()
                sums[-1] += moved
                weights[-1] += weight
                counts[-1] += size
        position = 0
        for block, size in enumerate(counts):
            moved = sums[block] / weights[block]
            for _ in range(size):
                self.x[row[position]] = moved + offsets[position]
                position += 1

    def _is_blocked(
        self,
        box: int,
        start: float,
        end: float,
        xs: Sequence[float],
        ys: Sequence[float],
        *,
        from_above: bool,
    ) -> bool:
        """Return whether a box of the same row lies between ``box`` and where a line leads.

        One that reaches further up is in the way of a line from above, and one that reaches
        further down in the way of a line to below.
        """
        row = self.rows[self.rank_of[box]]
        step = 1 if end > start else -1
        at = self.seat[box] + step
        while 0 <= at < len(row):
            other = row[at]
            if (xs[other] - end) * step >= self.widths[other] / 2:
                return False
            if not self.is_bend[other]:
                up = ys[box] - ys[other]
                down = self.heights[other] - self.heights[box] - up
                if (up if from_above else down) > 0:
                    return True
            at += step
        return False

    def _segments(
        self, xs: Sequence[float], ys: Sequence[float], tops: Sequence[float], tall: Sequence[float]
    ) -> dict[int, list[tuple[float, float, float, float]]]:
        for row in self.rows:
            for position, box in enumerate(row):
                self.seat[box] = position
        segments: dict[int, list[tuple[float, float, float, float]]] = {}
        for upper, lower, signed_net, upper_shift, lower_shift in self.steps + self.straight:
            net = signed_net if signed_net >= 0 else -1 - signed_net
            pieces = segments.setdefault(net, [])
            x1 = xs[upper] + upper_shift
            x2 = xs[lower] + lower_shift
            bottom_of_upper = tops[self.rank_of[upper]] + tall[self.rank_of[upper]]
            if self.is_bend[upper]:
                y1 = bottom_of_upper
            else:
                y1 = ys[upper] + self.heights[upper]
                if self.heights[upper] < tall[self.rank_of[upper]] and self._is_blocked(
                    upper, x1, x2, xs, ys, from_above=False
                ):
                    pieces.append((x1, y1, x1, bottom_of_upper))
                    y1 = bottom_of_upper
            top_of_row = tops[self.rank_of[lower]]
            if self.is_bend[lower]:
                bottom_of_row = top_of_row + tall[self.rank_of[lower]]
                pieces.append((x1, y1, x2, top_of_row))
                if bottom_of_row > top_of_row:
                    pieces.append((x2, top_of_row, x2, bottom_of_row))
            elif ys[lower] > top_of_row and self._is_blocked(
                lower, x2, x1, xs, ys, from_above=True
            ):
                pieces.append((x1, y1, x2, top_of_row))
                pieces.append((x2, top_of_row, x2, ys[lower]))
            else:
                pieces.append((x1, y1, x2, ys[lower]))
        return segments

    def _tops_of_boxes(self, tops: Sequence[float], tall: Sequence[float]) -> list[float]:
        """Put each box in the middle of its row; beside far taller ones, what ends there on top.

        A leaf is then below what leads to it, and not halfway down a module beside it.
        """
        goes_on = {step[0] for step in self.steps + self.straight}
        heads = []
        for box in range(self.count):
            top, height = tops[self.rank_of[box]], self.heights[box]
            spare = tall[self.rank_of[box]] - height
            on_top = box not in goes_on and spare > height > 0
            heads.append(top if on_top else top + spare / 2)
        return heads

    def placed(self) -> Placed:
        """Put everything into coordinates that start at 0."""
        left = 0.0
        right = 0.0
        for box in range(len(self.is_bend)):
            low = self.x[box] - self.widths[box] / 2
            high = self.x[box] + self.widths[box] / 2
            left = low if not box else min(left, low)
            right = high if not box else max(right, high)
        tops: list[float] = []
        tall: list[float] = []
        y = 0.0
        for number, row in enumerate(self.rows):
            height = 0.0
            for box in row:
                height = max(height, self.heights[box])
            if number:
                beside_ports = not height or not tall[-1]
                y += _GAP_PORT if beside_ports else _GAP_Y
            tops.append(y)
            tall.append(height)
            y += height
        xs = [x - left for x in self.x]
        ys = self._tops_of_boxes(tops, tall)
        segments = self._segments(xs, ys, tops, tall)
        for net, pieces in segments.items():
            segments[net] = list(dict.fromkeys(pieces))
        return Placed(
            x=tuple(xs[: self.count]),
            y=tuple(ys),
            ranks=tuple(self.ranks),
            segments=segments,
            width=right - left,
            height=y,
        )
