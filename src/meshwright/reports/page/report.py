"""What a page about a run is made of, as plain data, so that any room above can fill it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.ir.trace import Trace, labels_of
from meshwright.reports.page.comparison import Rows


@dataclass(frozen=True)
class Figure:
    """One headline number, already as text, with a line of small print; `is_warning`: it is not to be overlooked."""

    name: str
    value: str
    note: str = ""
    is_warning: bool = False


@dataclass(frozen=True)
class DataTable:
    """Any table as plain rows: column name -> value (text, number, truth value or None)."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A finished drawing: SVG text without a namespace, made by this package, so that all text in it is escaped."""

    title: str
    svg: str
    note: str = ""
    narrow: str = ""  # the same for a telephone, where one is drawn; else the picture is scrolled there


@dataclass(frozen=True)
class Report:
    """What a page shows; every part may be missing. Loss points are (x, loss); peaks are bytes by device. `leading` tables
    and pictures stand in front of everything but the figures, in their order."""

    title: str
    subtitle: str = ""
    figures: Sequence[Figure] = ()
    leading: Sequence[DataTable | Picture] = ()
    plan: Sequence[Mapping[str, Any]] = ()
    predicted: Trace | None = None
    measured: Trace | None = None
    capacity_bytes: float | None = None
    measured_peak_bytes: Mapping[int, float] = field(default_factory=dict)
    loss: Sequence[tuple[float, float]] = ()
    held_out_loss: Sequence[tuple[float, float]] = ()
    loss_levels: Sequence[tuple[str, float]] = ()
    loss_x_label: str = "step"
    comparison: Rows = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[DataTable] = ()
    assumptions: Sequence[str] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def traces(self) -> dict[str, Trace]:
        """The traces that there are, by label."""
        both = [trace for trace in (self.predicted, self.measured) if trace is not None]
        return dict(zip(labels_of(*both), both, strict=True))
