"""A trace as text: one row a device, time from left to right, in colour or in plain ASCII."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from meshwright.ir.trace import Trace
from meshwright.reports.chart.palette import INK, cell_colour, colour
from meshwright.reports.chart.quantity import nice_ticks, tick_texts
from meshwright.reports.trace.legend import MEANINGS, shown_devices, trace_facts
from meshwright.reports.trace.timeline import IntArray, Timeline, read_timeline

MIN_GRID_COLUMNS = 20
HALVES = 2  # a character shows two bins side by side with a half block
TICK_COLUMNS = 16  # a number on the time axis about every so many columns
SNAP_SHARE = 0.6  # unit times are drawn with equal cells if that uses at least this share of the width
ASCII_FILL = {"F": "-", "B": "=", "I": "=", "W": "~", "R": ":"}
IDLE = "\N{MIDDLE DOT}"
LEFT_HALF, RIGHT_HALF = "\N{LEFT HALF BLOCK}", "\N{RIGHT HALF BLOCK}"
IDLE_STYLE = Style(dim=True)
COMM_STYLE = Style(color=colour("SEND_F", "SEND"))
COLLECTIVE_STYLE = Style(color=colour("REDUCE_GRAD", "COLLECTIVE"))


class TimelineView:
    """A rich renderable of one or more labelled traces under each other, on one time scale.

    `facts` (name -> text) are added to the legend of the last trace. With `colour=False`, or where the console
    shows no colours (a pipe, NO_COLOR), the text is plain ASCII: a cell is the name, the microbatch and a
    fill; `.` is idle, `>` an exposed exchange.
    """

    def __init__(
        self,
        traces: Mapping[str, Trace],
        colour: bool = True,
        width: int | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self.traces = dict(traces)
        self.colour = colour
        self.width = width
        self.facts = dict(facts or {})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        can_colour = console.color_system is not None and not console.no_color and not options.ascii_only
        yield from self.lines(self.width or options.max_width, self.colour and can_colour)

    def lines(self, width: int, in_colour: bool | None = None) -> list[Text]:
        """The lines of the whole picture, each at most `width` columns wide; `in_colour` overrides `colour`."""
        in_colour = self.colour if in_colour is None else in_colour
        timelines = {label: read_timeline(trace) for label, trace in self.traces.items()}
        gutter = 1 + max((len(name) for line in timelines.values() for name in line.devices), default=3)
        scale = _Scale.fit(list(timelines.values()), max(MIN_GRID_COLUMNS, width - gutter - 1), in_colour)
        lines: list[Text] = []
        for label, timeline in timelines.items():
            if label:
                lines.append(Text(label, style="bold" if in_colour else ""))
            lines += [_device_line(timeline, device, gutter, scale) for device in shown_devices(timeline)]
            lines += _hidden_line(timeline, gutter)
            is_last = label == list(timelines)[-1]
            if is_last:
                lines.append(_axis_line(timeline, gutter, scale))
            facts = {**trace_facts(self.traces[label], timeline), **(self.facts if is_last else {})}
            lines += _wrapped_facts(facts, width, in_colour)
            if not is_last:
                lines.append(Text(""))
        lines += _key_lines(list(timelines.values()), width, in_colour)
        return lines


def timeline_view(trace: Trace, colour: bool = True, facts: Mapping[str, str] | None = None) -> TimelineView:
    """One trace as a rich renderable."""
    return TimelineView({"": trace}, colour, facts=facts)


def timeline_text(
    traces: Trace | Mapping[str, Trace], width: int = 100, facts: Mapping[str, str] | None = None
) -> str:
    """One trace, or several labelled ones on one scale, as plain ASCII lines."""
    labelled = traces if isinstance(traces, Mapping) else {"": traces}
    lines = TimelineView(labelled, colour=False, facts=facts).lines(width)
    return "\n".join(line.plain.rstrip() for line in lines) + "\n"


class _Scale(NamedTuple):
    """How seconds become columns: the same for all traces of a picture."""

    horizon_s: float
    columns: int
    in_colour: bool

    @classmethod
    def fit(cls, timelines: Sequence[Timeline], columns: int, in_colour: bool) -> _Scale:
        """The widest scale that fits; equal computes get equal cells where their times have a common unit."""
        horizon_s = max((timeline.extent_s for timeline in timelines), default=1.0)
        unit_s = _common_unit_s(timelines)
        if unit_s:
            per_column = HALVES if in_colour else 1
            num_units = horizon_s / unit_s
            bins = int(columns * per_column / num_units + 1e-9)
            used = int(np.ceil(bins * num_units / per_column - 1e-9))
            if bins and used >= SNAP_SHARE * columns:
                return cls(used * per_column * unit_s / bins, used, in_colour)
        return cls(horizon_s, columns, in_colour)


def _common_unit_s(timelines: Sequence[Timeline]) -> float:
    """The shortest compute if every start and end of a compute is a multiple of it, otherwise 0."""
    edges = [line.start_s[line.lane == 0] for line in timelines] + [
        line.end_s[line.lane == 0] for line in timelines
    ]
    lengths = [line.end_s[line.lane == 0] - line.start_s[line.lane == 0] for line in timelines]
    positive = np.concatenate(lengths) if lengths else np.empty(0)
    positive = positive[positive > 0]
    if not positive.size:
        return 0.0
    unit_s = float(positive.min())
    multiples = np.concatenate(edges) / unit_s
    return unit_s if bool(np.all(np.abs(multiples - np.rint(multiples)) < 1e-6)) else 0.0


def _device_line(timeline: Timeline, device: int, gutter: int, scale: _Scale) -> Text:
    line = Text(no_wrap=True, overflow="crop", end="")
    line.append(f"{timeline.devices[device]:>{gutter - 1}} ", style="bold" if scale.in_colour else "")
    cells = _colour_cells if scale.in_colour else _ascii_cells
    cells(line, timeline, device, scale)
    line.end = "\n"
    return line


def _colour_cells(line: Text, timeline: Timeline, device: int, scale: _Scale) -> None:
    """Two bins a character: full cells as background, ends of cells as half blocks, digits where they fit."""
    bins = timeline.sample(device, 0, scale.columns * HALVES, scale.horizon_s).reshape(-1, HALVES)
    digits = _digits_of_columns(timeline, bins)
    exchanges = _exposed_exchanges(timeline, device, scale)
    colours = {row: _row_colour(timeline, row) for row in np.unique(bins).tolist() if row >= 0}
    characters: list[tuple[str, Style]] = []
    for column, (left, right) in enumerate(bins.tolist()):
        if left < 0 and right < 0:
            characters.append(_idle_character(exchanges[column]))
        elif left == right:
            characters.append((digits[column], Style(color=INK, bgcolor=colours[left])))
        elif right < 0:
            characters.append((LEFT_HALF, Style(color=colours[left])))
        elif left < 0:
            characters.append((RIGHT_HALF, Style(color=colours[right])))
        else:
            characters.append((LEFT_HALF, Style(color=colours[left], bgcolor=colours[right])))
    for style, run in groupby(characters, key=itemgetter(1)):
        line.append("".join(character for character, _ in run), style)


def _row_colour(timeline: Timeline, row: int) -> str:
    name = int(timeline.name[row])
    return cell_colour(timeline.names[name], timeline.kinds[name], int(timeline.microbatch[row]))


def _digits_of_columns(timeline: Timeline, bins: IntArray) -> list[str]:
    """For each column the character of the microbatch's number, in the middle of the whole columns of its cell."""
    texts = [" "] * len(bins)
    whole = np.where(bins[:, 0] == bins[:, -1], bins[:, 0], -1)
    for first, last in _runs(whole):
        row = int(whole[first])
        number = int(timeline.microbatch[row]) if row >= 0 else -1
        label = str(number) if number >= 0 else timeline.names[int(timeline.name[row])] if row >= 0 else ""
        if label and len(label) <= last - first:
            place = first + (last - first - len(label)) // 2
            texts[place : place + len(label)] = list(label)
    return texts


def _runs(values: IntArray) -> list[tuple[int, int]]:
    """Half-open ranges of equal neighbours."""
    edges = np.flatnonzero(np.diff(values)) + 1
    bounds = [0, *edges.tolist(), len(values)]
    return [pair for pair in zip(bounds[:-1], bounds[1:], strict=True) if pair[1] > pair[0]]


def _exposed_exchanges(timeline: Timeline, device: int, scale: _Scale) -> list[str]:
    """For each column `collective`, `exchange` or nothing: what moves there, to be drawn where no compute runs."""
    found = [""] * scale.columns
    for lane in (lane for lane in timeline.lanes if lane > 0):
        kind = "collective" if lane == 3 else "exchange"
        for column in np.flatnonzero(
            timeline.sample(device, lane, scale.columns, scale.horizon_s) >= 0
        ).tolist():
            found[column] = found[column] or kind
    return found


def _idle_character(exchange: str) -> tuple[str, Style]:
    if exchange == "collective":
        return "\N{BOX DRAWINGS HEAVY HORIZONTAL}", COLLECTIVE_STYLE
    if exchange == "exchange":
        return "\N{BOX DRAWINGS LIGHT HORIZONTAL}", COMM_STYLE
    return IDLE, IDLE_STYLE


def _ascii_cells(line: Text, timeline: Timeline, device: int, scale: _Scale) -> None:
    bins = timeline.sample(device, 0, scale.columns, scale.horizon_s)
    exchanges = _exposed_exchanges(timeline, device, scale)
    for first, last in _runs(bins):
        row = int(bins[first])
        if row < 0:
            line.append("".join(">" if exchanges[column] else "." for column in range(first, last)))
        else:
            line.append(_ascii_cell(timeline, row, last - first))


def _ascii_cell(timeline: Timeline, row: int, width: int) -> str:
    name, number = timeline.names[int(timeline.name[row])], int(timeline.microbatch[row])
    fill = ASCII_FILL.get(name, "-")
    label = f"{name}{number}" if number >= 0 else name
    label = label if len(label) <= width else name[:width]
    return label + fill * (width - len(label))


def _hidden_line(timeline: Timeline, gutter: int) -> list[Text]:
    shown, count = len(shown_devices(timeline)), len(timeline.devices)
    if shown == count:
        return []
    return [Text(f"{'':{gutter}}{shown} of {count} devices, evenly chosen", style="dim")]


def _axis_line(timeline: Timeline, gutter: int, scale: _Scale) -> Text:
    """Round times under the grid, each starting at its column."""
    ticks = nice_ticks(0.0, scale.horizon_s, max(2, scale.columns // TICK_COLUMNS))
    characters = [" "] * scale.columns
    for tick, text in zip(ticks, tick_texts(ticks, timeline.time_unit), strict=True):
        column = round(tick / scale.horizon_s * scale.columns)
        label = f"|{text}" if not scale.in_colour else f"\N{BOX DRAWINGS LIGHT VERTICAL}{text}"
        if column + len(label) <= scale.columns:
            characters[column : column + len(label)] = list(label)
    return Text(
        " " * gutter + "".join(characters).rstrip(), style="dim" if scale.in_colour else "", no_wrap=True
    )


def _wrapped_facts(facts: Mapping[str, str], width: int, in_colour: bool) -> list[Text]:
    parts = []
    for name, value in facts.items():
        part = Text(f"{name} ", style="dim" if in_colour else "")
        parts.append(part.append(value, style="not dim bold" if in_colour else ""))
    return _flow(parts, width)


def _key_lines(timelines: Sequence[Timeline], width: int, in_colour: bool) -> list[Text]:
    """Which colour, or in ASCII which fill, is which name."""
    present: dict[tuple[str, str], None] = {}
    lanes: set[int] = set()
    for timeline in timelines:
        for name in np.unique(timeline.name[timeline.lane == 0]).tolist():
            present.setdefault((timeline.names[name], timeline.kinds[name]))
        lanes |= set(np.unique(timeline.lane[timeline.end_s > timeline.start_s]).tolist())
    parts = [_key(name, kind, in_colour) for name, kind in present]
    if lanes - {0, 3}:
        parts.append(
            _symbol("\N{BOX DRAWINGS LIGHT HORIZONTAL}", COMM_STYLE, ">", "exposed transfer", in_colour)
        )
    if 3 in lanes and in_colour:
        parts.append(
            _symbol("\N{BOX DRAWINGS HEAVY HORIZONTAL}", COLLECTIVE_STYLE, ">", "exposed collective", True)
        )
    parts.append(_symbol(IDLE, IDLE_STYLE, ".", "idle", in_colour))
    return _flow(parts, width)


def _key(name: str, kind: str, in_colour: bool) -> Text:
    if not in_colour:
        return Text(f"{name}{ASCII_FILL.get(name, '-') * 2} {MEANINGS.get(name, name.lower())}")
    text = Text().append(f" {name} ", Style(color=INK, bgcolor=colour(name, kind), bold=True))
    return text.append(f" {MEANINGS[name]}" if name in MEANINGS else "", "dim")


def _symbol(mark: str, style: Style, ascii_mark: str, meaning: str, in_colour: bool) -> Text:
    if not in_colour:
        return Text(f"{ascii_mark * 2} {meaning}")
    return Text().append(mark * 2, style).append(f" {meaning}", "dim")


def _flow(parts: Sequence[Text], width: int) -> list[Text]:
    """Parts side by side, three spaces apart, on as few lines as the width allows."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1].append("   ").append_text(part)
        else:
            lines.append(Text(no_wrap=True).append_text(part))
    return lines
