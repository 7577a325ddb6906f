"""What all pictures of a trace say beside it: its figures, the meaning of its colours, which devices are shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.ir.judge import metrics
from meshwright.ir.trace import Trace
from meshwright.reports.chart.palette import colour
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.trace.timeline import LANE_OF_KIND, LANES, Timeline

MAX_DEVICES = 32  # more devices than this are shown as an even selection
MEANINGS = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "recompute",
    "S": "softmax of the split vocabulary",
    "T": "gradient of the split head",
    "LOOKUP": "lookup in the split table",
    "SCATTER": "gradient of the split table",
    "STEP": "optimizer step",
}


def trace_facts(trace: Trace, timeline: Timeline) -> dict[str, str]:
    """What the legend says of a trace: span, device time, bubble and, where it was recorded, peak memory."""
    unit = timeline.time_unit
    facts = {
        "span": quantity(metrics.span_s(trace), unit),
        "device time": quantity(metrics.device_time_s(trace), unit),
        "bubble": quantity(metrics.bubble(trace), "share"),
    }
    if trace.memory and unit:
        facts["peak"] = quantity(float(metrics.peak_bytes(trace)), "B")
    return facts


def shown_devices(timeline: Timeline, most: int = MAX_DEVICES) -> list[int]:
    """All devices, or an even selection of `most` of them with the first and the last."""
    count = len(timeline.devices)
    if not count:
        return []
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def timeline_key(timelines: Sequence[Timeline]) -> dict[str, str]:
    """Meaning -> colour of everything that the timelines draw, the computes first."""
    found: dict[tuple[int, str], str] = {}
    for timeline in timelines:
        for name in np.unique(timeline.name[timeline.end_s > timeline.start_s]).tolist():
            kind, text = timeline.kinds[name], timeline.names[name]
            lane = LANE_OF_KIND[kind]
            found.setdefault((lane, LANES[lane] if lane else MEANINGS.get(text, text)), colour(text, kind))
    return {meaning: found[lane, meaning] for lane, meaning in sorted(found, key=lambda key: key[0])}
