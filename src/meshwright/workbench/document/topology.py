"""topology_section: who of a pipeline sends how much to whom in a step, and how long that keeps their streams busy."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from meshwright.prediction.step_program import StepProgram
from meshwright.reports.chart.quantity import quantity
from meshwright.reports.trace.timeline import device_labels
from meshwright.simulator.pricing import bytes_moved
from meshwright.workbench.document.document import Section, TopologyLink, TopologyNode, TopologySection

MOST_IN_ROW = 16  # devices of a pipeline side by side
HUB_Y = {"tp": 0.04, "cp": 0.04, "ep": 0.04, "dp": 0.96}  # groups inside a stage above, replicas below


def topology_section(made: StepProgram, trace: Trace) -> list[Section]:
    """Devices of one pipeline, messages between them, and what each exchanges with its groups; nothing where no row sends."""
    sent = _sent(made, trace)
    if not sent:
        return []
    labels = device_labels(made.wiring.program)
    rows = math.ceil(len(labels) / MOST_IN_ROW)
    wide = min(len(labels), MOST_IN_ROW)
    nodes = [
        TopologyNode(
            f"device{number}",
            label,
            (number % MOST_IN_ROW + 0.5) / wide,
            (number // MOST_IN_ROW + 1) / (rows + 1),
            "device",
        )
        for number, label in enumerate(labels)
    ]
    hubs = sorted({target for _, target, _ in sent if target.startswith("group ")})
    nodes += [
        TopologyNode(hub, hub, (place + 0.5) / len(hubs), HUB_Y.get(hub.split()[1], 0.04), "group")
        for place, hub in enumerate(hubs)
    ]
    links = [
        TopologyLink(source, target, f"{name} {quantity(size, 'B')}", size, min(1.0, share))
        for (source, target, name), (size, share) in sent.items()
    ]
    note = (
        "One pipeline; bytes that a device hands over in a step, and the share of the step in which its stream is busy with "
        "them. What is priced inside a stage is not drawn."
    )
    return [TopologySection("topology", "Communication", nodes, links, note)]


def _sent(made: StepProgram, trace: Trace) -> dict[tuple[str, str, str], tuple[float, float]]:
    """(bytes, share of the step) by who, to whom and the name of the instruction."""
    program = made.wiring.program
    sizes, start_s, end_s = bytes_moved(made.wiring), trace.start_s[-1], trace.end_s[-1]
    span_s = float(end_s.max(initial=0.0) - start_s.min(initial=np.inf)) or 1.0
    rows = np.flatnonzero((program.kinds == Kind.SEND) | (program.kinds == Kind.COLLECTIVE))
    columns = program.columns
    shape = program.num_lists, len(program.tables.effects), len(program.tables.exchanges)
    keys = program.list_of_row[rows], columns.effect[rows], columns.exchange[rows]
    codes, inverse = np.unique(np.ravel_multi_index(keys, shape), return_inverse=True)
    size = np.bincount(inverse, weights=sizes[rows], minlength=len(codes))
    busy_s = np.bincount(inverse, weights=(end_s - start_s)[rows], minlength=len(codes))
    found: defaultdict[tuple[str, str, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    own = {made.placement.of_list(program, number): number for number in range(program.num_lists)}
    for place, (number, effect, exchange) in enumerate(
        np.stack(np.unravel_index(codes, shape), axis=1).tolist()
    ):
        told, told_of = program.tables.effects[effect], program.tables.exchanges[exchange]
        if told.kind == Kind.SEND:
            target = made.placement.ends(program, number, told.kind, told_of)[1]
            where = f"device{own[target]}" if target in own else f"group {told_of.axes[0]}"
        else:
            count = math.prod(program.axis(axis).size for axis in told_of.axes)
            where = f"group {' '.join(told_of.axes)} {count}"
        before = found[f"device{number}", where, told.name]
        found[f"device{number}", where, told.name] = (
            before[0] + float(size[place]), before[1] + float(busy_s[place]) / span_s,
        )  # fmt: skip
    return dict(found)
