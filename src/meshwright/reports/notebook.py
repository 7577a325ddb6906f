"""A trace in a notebook: an object that shows itself as a timeline, and the hook for traces shown as they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.ir.trace import Trace
from meshwright.reports.trace.svg import timeline_svg
from meshwright.reports.trace.terminal import timeline_text

NOTEBOOK_WIDTH = 900
# A light sheet under the picture: notebooks have dark themes too, and the picture is made for paper.
SHEET = "background:#ffffff;padding:8px;border-radius:6px;display:inline-block;max-width:100%;overflow-x:auto"


@dataclass(frozen=True)
class TimelineDisplay:
    """Traces by label; a notebook shows them as SVG, a terminal as text."""

    traces: Mapping[str, Trace]
    width: int = NOTEBOOK_WIDTH

    def _repr_html_(self) -> str:
        return f'<div style="{SHEET}">{timeline_svg(self.traces, self.width)}</div>'

    def _repr_svg_(self) -> str:
        return timeline_svg(self.traces, self.width)

    def __repr__(self) -> str:
        return timeline_text(self.traces)


def display(traces: Trace | Mapping[str, Trace], width: int = NOTEBOOK_WIDTH) -> TimelineDisplay:
    """What to return from a notebook cell (or from a `_repr_html_`) to see one trace, or several on one time scale."""
    return TimelineDisplay(traces if isinstance(traces, Mapping) else {"": traces}, width)


def show_traces_in_notebooks() -> bool:
    """Make a running IPython show every `Trace` as a timeline. Returns whether there is one; does nothing otherwise."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return False
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(Trace, lambda trace: display(trace)._repr_html_())
    return True
