"""Document: what a page shows, as typed parts that become plain JSON. docs/design.md says the idea."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal

from meshwright.reports.page.report import Figure
from meshwright.workbench.document.column import Column

SCHEMA = "meshwright-view 1"
DocumentKind = Literal[
    "plan", "program", "trace", "run", "comparison", "validation", "sweep", "load", "bench", "workbench"
]


@dataclass(frozen=True)
class DeviceGroup:
    """`count` devices that do the same as the drawn one `devices[0]`, an index into the trace's devices."""

    name: str
    devices: Sequence[int]
    count: int


@dataclass(frozen=True)
class DrawnLane:
    """A row of the picture: a device, and what of it: compute, send, receive, collective, memory, host."""

    device: int
    stream: str


@dataclass(frozen=True)
class DrawnKind:
    """How one kind of instruction is drawn; patterns tell kinds apart without colours."""

    name: str
    color_light: str
    color_dark: str
    pattern: str


@dataclass(frozen=True, eq=False)
class DrawnMemory:
    """Bytes on a device over time, as steps."""

    device: int
    time_s: Column
    bytes: Column


@dataclass(frozen=True, eq=False)
class DrawnTrace:
    """One iteration of a trace: rows as columns, by lane and start; times in seconds from its first start.

    `names` are the instructions' own words, `kinds` what they are for people; columns number both. `microbatch` is -1 where
    there is none. `is_sampled`: there were too many rows, and what runs at evenly spaced moments is drawn.
    """

    label: str
    source: Literal["simulated", "measured"]
    span_s: float
    devices: Sequence[str]
    groups: Sequence[DeviceGroup]
    lanes: Sequence[DrawnLane]
    kinds: Sequence[DrawnKind]
    names: Sequence[str]
    columns: Mapping[str, Column]
    memory: Sequence[DrawnMemory] = ()
    cap_bytes: float | None = None
    is_sampled: bool = False


@dataclass(frozen=True, eq=False)
class TimelineSection:
    """Traces under one another on one time axis."""

    type: ClassVar[str] = "timeline"
    id: str
    title: str
    traces: Sequence[DrawnTrace]
    note: str = ""


@dataclass(frozen=True)
class CompositionPart:
    """Seconds of one part of a step; `kind`: what bounds it, as of `prediction.step_trait`."""

    name: str
    seconds: float
    kind: str


@dataclass(frozen=True)
class CompositionSection:
    """What adds up to a step on its busiest device."""

    type: ClassVar[str] = "composition"
    id: str
    title: str
    parts: Sequence[CompositionPart]
    total_s: float
    note: str = ""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: the key of its cells, its head, and whether they stand to the right."""

    key: str
    title: str
    is_number: bool


@dataclass(frozen=True)
class TableSection:
    """Rows of texts."""

    type: ClassVar[str] = "table"
    id: str
    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[Mapping[str, str]]
    note: str = ""


@dataclass(frozen=True)
class PlansSection:
    """Ranked plans; `ids` are the words of the state of each, so that one can be opened; `chosen` is a row, or -1."""

    type: ClassVar[str] = "plans"
    id: str
    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[Mapping[str, str]]
    ids: Sequence[str]
    chosen: int = -1
    note: str = ""


@dataclass(frozen=True)
class FrontierMark:
    """One mark; `id` as in `PlansSection`."""

    x: float
    y: float
    label: str
    id: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class FrontierSection:
    """Points of two quantities, those that no other beats in both marked as best; `has_diagonal`: with the line on which both
    are equal. Units: s, B, or words."""

    type: ClassVar[str] = "frontier"
    id: str
    title: str
    points: Sequence[FrontierMark]
    x_title: str
    y_title: str
    x_unit: str = ""
    y_unit: str = ""
    note: str = ""
    has_diagonal: bool = False


@dataclass(frozen=True)
class TopologyNode:
    """A node of the picture of a cluster, x and y from 0 to 1."""

    id: str
    label: str
    x: float
    y: float
    kind: str


@dataclass(frozen=True)
class TopologyLink:
    """What passes between two nodes in one iteration; `busy_share` of its time that anything does."""

    source: str = field(metadata={"key": "from"})
    target: str = field(metadata={"key": "to"})
    label: str = ""
    bytes: float = 0.0
    busy_share: float = 0.0


@dataclass(frozen=True)
class TopologySection:
    """Who sends how much to whom."""

    type: ClassVar[str] = "topology"
    id: str
    title: str
    nodes: Sequence[TopologyNode]
    links: Sequence[TopologyLink]
    note: str = ""


@dataclass(frozen=True, eq=False)
class SeriesLine:
    """One line of a chart."""

    label: str
    x: Column
    y: Column


@dataclass(frozen=True, eq=False)
class SeriesSection:
    """Lines over one axis. Units: s, B, or words. `is_log`: does y go by powers of ten?"""

    type: ClassVar[str] = "series"
    id: str
    title: str
    lines: Sequence[SeriesLine]
    x_title: str
    y_title: str
    x_unit: str = ""
    y_unit: str = ""
    note: str = ""
    is_log: bool = False


@dataclass(frozen=True)
class BindingItem:
    """What would help, how much faster the step is with it (a share), and a sentence."""

    name: str
    share: float
    text: str


@dataclass(frozen=True)
class BindsSection:
    """What binds, the most first."""

    type: ClassVar[str] = "binds"
    id: str
    title: str
    items: Sequence[BindingItem]
    note: str = ""


Section = (
    TimelineSection | CompositionSection | TableSection | PlansSection | FrontierSection
    | TopologySection | SeriesSection | BindsSection
)  # fmt: skip


@dataclass(frozen=True)
class Follow:
    """That a document grows: where a page asks for it again, and how often."""

    url: str
    every_s: float


@dataclass(frozen=True, eq=False)
class Document:
    """What one page shows: facts, and sections in the order in which they are read."""

    kind: DocumentKind
    title: str
    subtitle: str = ""
    facts: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    sections: Sequence[Section] = ()
    follow: Follow | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, ready for `json.dumps`."""
        found: dict[str, Any] = {"schema": SCHEMA, **plain_json(self)}
        if self.follow is None:
            del found["follow"]
        return found

    def text(self) -> str:
        """The JSON itself."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def plain_json(value: Any) -> Any:
    """Parts as objects with their `type`, columns as `Column.to_json`, what is not finite as null."""
    if isinstance(value, Column):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        head = {"type": value.type} if hasattr(value, "type") else {}
        return head | {
            each.metadata.get("key", each.name): plain_json(getattr(value, each.name))
            for each in fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
