"""StepSurface: seconds of a step as a sum of four surfaces on grids, each made of simulated steps, read in microseconds.

    seconds(T, P, n, D, C) = rows(T + D) + head(n + D) + chunks(T, 2 P / T) + decodes(D, C / D)

T tokens of n chunks that see P pairs, D decodes that see C tokens. `rows` is a step without attention and head, the others
are what each adds to it. Between nodes lines; in both directions of a plane.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from meshwright.serving.simulated.batch_shape import BatchShape

TILE_ROWS = (
    64  # of products of more than so many rows; other tiles are multiples of it (`costs.kernel.gemm.TILES`)
)
FLAT = 1e-9  # of a whole number of steps, or of the change of a step over a run of them: none
Nodes = list[float]
Line = tuple[Nodes, list[float], list[float]]  # nodes, values there, slopes behind them


def line(nodes: Sequence[float], values: Sequence[float]) -> Line:
    """A line through points; behind the last node it goes on as before it."""
    slopes = [(b - a) / (y - x) for a, b, x, y in zip(values, values[1:], nodes, nodes[1:], strict=False)]
    return [*nodes], [*values], [*slopes, slopes[-1] if slopes else 0.0]


def at(points: Line, x: float) -> float:
    """The line's value."""
    nodes, values, slopes = points
    i = bisect_right(nodes, x)
    i = i - 1 if i else 0
    return values[i] + slopes[i] * (x - nodes[i])


@dataclass(frozen=True, eq=False)
class StepPlane:
    """Lines along x at nodes of y, and lines between them."""

    nodes: Nodes
    lines: tuple[Line, ...]

    def at(self, y: float, x: float) -> float:
        """Its value; beyond the last node of y as between the last two."""
        nodes = self.nodes
        i = bisect_right(nodes, y, 1, len(nodes) - 1) - 1
        low = nodes[i]
        below, above = at(self.lines[i], x), at(self.lines[i + 1], x)
        return below + (above - below) * (y - low) / (nodes[i + 1] - low)


def _steps_within(span_s: float, first: float, slope: float) -> int:
    """How many steps begin before so many seconds are over: the least j with j first + slope j (j - 1) / 2 >= span_s."""
    if span_s <= 0:
        return 0
    half = slope / 2
    linear = first - half
    if abs(half) * span_s <= FLAT * linear * linear:
        return ceil(span_s / first)
    return ceil((sqrt(linear * linear + 4 * half * span_s) - linear) / (2 * half) - FLAT)


def row_nodes(most: int) -> list[int]:
    """Rows of linear layers: each of the first tile; then the last row of every tile and the first of the next one, where a
    product takes a stair; between them it is almost a line."""
    tiles = range(TILE_ROWS, most + TILE_ROWS, TILE_ROWS)
    return _up_to([*range(1, TILE_ROWS), *(row for last in tiles for row in (last, last + 1))], most)


def doubling_nodes(first: int, most: int, per_doubling: int = 1) -> list[int]:
    """first, 2 first, 4 first, ... beyond `most`; with nodes in between."""
    found, start = [], first
    while start < most:
        found += [start + start * i // per_doubling for i in range(per_doubling)]
        start *= 2
    return _up_to([*dict.fromkeys(found), start], most)


def _up_to(nodes: list[int], most: int) -> list[int]:
    """Those below `most`, and the first one from it; at least two."""
    number = next((i for i, node in enumerate(nodes) if node >= most), len(nodes) - 1) + 1
    return nodes[: max(number, 2)]


@dataclass(frozen=True, eq=False)
class Grid:
    """Where steps are simulated. Attributes: nodes of rows, of the head's rows, (tokens, seen) of chunks, (number, seen) of
    decodes."""

    rows: list[int]
    head: list[int]
    chunks: tuple[list[int], list[int]]
    decodes: tuple[list[int], list[int]]

    @classmethod
    def of(cls, most_tokens: int, most_sequences: int, most_context: int) -> Grid:
        """For batches of at most so many tokens and sequences, of at most so many tokens each."""
        return cls(
            row_nodes(most_tokens),
            row_nodes(most_sequences),
            (doubling_nodes(16, most_tokens, 4), doubling_nodes(16, 2 * most_context, 4)),
            (doubling_nodes(1, most_sequences, 8), doubling_nodes(16, most_context, 2)),
        )

    def batches(self) -> Iterator[BatchShape]:
        """All that is simulated."""
        yield from map(_of_rows, self.rows)
        yield from (_of_rows(1, n) for n in self.head)
        for tokens in self.chunks[0]:
            yield from (_of_chunks(tokens, seen) for seen in self.chunks[1])
            yield _of_rows(tokens)
        for number in self.decodes[0]:
            yield from (_of_decodes(number, seen) for seen in self.decodes[1])
            yield _of_rows(number, number)


def _of_rows(tokens: int, rows: int = 0) -> BatchShape:
    return BatchShape(tokens, 0, rows)


def _of_chunks(tokens: int, seen: int) -> BatchShape:
    return BatchShape(tokens, max(tokens, tokens * seen // 2), 0)


def _of_decodes(number: int, seen: int) -> BatchShape:
    return BatchShape(num_decodes=number, num_context=number * seen)


class StepSurface:
    """Seconds of steps from simulated ones at the nodes of a grid."""

    def __init__(self, seconds_of: Callable[[BatchShape], float], grid: Grid) -> None:
        self._rows = line(grid.rows, [seconds_of(_of_rows(n)) for n in grid.rows])
        least = seconds_of(_of_rows(1))
        self._head = line(grid.head, [seconds_of(_of_rows(1, n)) - least for n in grid.head])

        def plane(nodes: tuple[list[int], list[int]], added: Callable[[int, int], float]) -> StepPlane:
            ys, xs = nodes
            return StepPlane([*map(float, ys)], tuple(line(xs, [added(y, x) for x in xs]) for y in ys))

        self._chunks = plane(
            grid.chunks,
            lambda tokens, seen: seconds_of(_of_chunks(tokens, seen)) - seconds_of(_of_rows(tokens)),
        )
        self._decodes = plane(
            grid.decodes, lambda n, seen: seconds_of(_of_decodes(n, seen)) - seconds_of(_of_rows(n, n))
        )
        self._of_decodes: dict[int, Line] = {}

    def seconds(self, tokens: int, pairs: int, num_chunks: int, num_decodes: int, num_context: int) -> float:
        """Of a batch, as `BatchShape` names its numbers."""
        if not tokens:
            return at(self.decode_line(num_decodes), num_context / num_decodes) if num_decodes else 0.0
        found = at(self._rows, tokens + num_decodes) + at(self._head, num_chunks + num_decodes)
        if pairs:
            found += self._chunks.at(tokens, 2.0 * pairs / tokens)
        if num_decodes:
            found += self._decodes.at(num_decodes, num_context / num_decodes)
        return found

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """Of steps with the same decodes, each of which sees one token more a sequence: how many, at most `most`, begin
        within `span_s`, at least one; and their seconds together.

        On a piece of the line that begins with t seconds a step and rises by s, the first j take j t + s j (j - 1) / 2.
        """
        nodes, values, slopes = self.decode_line(num_decodes)
        seen, number, seconds = num_context / num_decodes, 0, 0.0
        last = len(nodes) - 1
        piece = max(bisect_right(nodes, seen) - 1, 0)
        while True:
            slope = slopes[piece]
            first = values[piece] + slope * (seen - nodes[piece])
            left = most - number
            steps = left if piece == last else min(left, int(nodes[piece + 1] - seen) + 1)
            total = steps * first + slope * steps * (steps - 1) / 2
            if seconds + total >= span_s:
                steps = min(
                    steps, max(1 if number == 0 else 0, _steps_within(span_s - seconds, first, slope))
                )
                return number + steps, seconds + steps * first + slope * steps * (steps - 1) / 2
            number, seconds, seen = number + steps, seconds + total, seen + steps
            if number >= most:
                return number, seconds
            piece = min(piece + 1, last)

    def decode_line(self, num_decodes: int) -> Line:
        """Seconds of a step of so many decodes by what each sees in the mean."""
        found = self._of_decodes.get(num_decodes)
        if found is None:
            nodes = self._decodes.lines[0][0]
            flat = at(self._rows, num_decodes) + at(self._head, num_decodes)
            found = line(nodes, [flat + self._decodes.at(num_decodes, x) for x in nodes])
            self._of_decodes[num_decodes] = found
        return found
